"""Places in a program that call MPI, as hvprof records and names them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

import hvprof
from hvd_ext.errors import UsageError
from hvprof.format.sites import places_of
from testbed.mpi_programs import compile_for
from tests.support.hvprof.recorded import PROGRAMS, RECORD, mpirun, own_mpi, run

SOURCE = PROGRAMS / "known_messages.c"
_AFTER = 3  # lines of a call


def test_calls_are_counted_by_the_line_that_makes_them(tmp_path: Path) -> None:
    program, folder = tmp_path / "program", tmp_path / "run"
    compile_for(own_mpi(), "-g", SOURCE, "-o", program)
    done = run([*RECORD, "-o", folder, "--", *mpirun(3), program])
    assert done.returncode == 0, done.stderr
    lines = SOURCE.read_text().splitlines()
    for rank in hvprof.load(folder).ranks:
        calls = Counter[str]()
        places = places_of(rank.sites)
        for site in rank.sites:
            calls[site.operation] += site.calls
            shown = places[site.object, site.offset]
            match = re.fullmatch(r"known_messages\.c:(\d+) \((kinds|one_sided|main)\)", shown)
            assert match, shown
            at = int(match[1])
            near = "\n".join(lines[max(0, at - _AFTER) : at + _AFTER])
            assert f"MPI_{site.operation.capitalize()}" in near, (site, shown)
            assert 0 < site.max_s <= site.time_s
        of_cells = Counter[str]()
        for cell in rank.cells:
            of_cells[cell.operation] += cell.calls
        assert calls == of_cells
        assert rank.sites == tuple(sorted(rank.sites, key=lambda one: -one.time_s))
    # Without debugging information a place is known by its function, or by its offset at least.
    run(["strip", program])
    stripped = places_of(hvprof.load(folder).ranks[0].sites)
    assert all(shown.startswith("program + 0x") for shown in stripped.values())
    for damage in (b"hvpsite\n", b"another!" + bytes(100_000)):
        (folder / "rank-00001.sites").write_bytes(damage)
        with pytest.raises(UsageError, match=r"rank-00001\.sites"):
            hvprof.load(folder)
    (folder / "rank-00001.sites").unlink()
    assert hvprof.load(folder).ranks[1].sites == ()
