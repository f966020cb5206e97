"""Places in a program that call MPI, as hvprof records and names them."""

from __future__ import annotations

import re
import sys
from collections import Counter
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import hvprof
from hvd_ext.errors import UsageError
from hvprof.analysis.analysis import Analysis
from hvprof.analysis.sites import SiteCost
from hvprof.analysis.waiting.call_costs import OperationCost, call_costs, operation_costs
from hvprof.format.sites import places_of
from hvprof.format.symbols import readable
from hvprof.reporters.formats.json_csv import as_json
from hvprof.reporters.page.html import report_page
from hvprof.reporters.page.sections.base import Page
from hvprof.reporters.terminal.terminal import render
from testbed.mpi_programs import compile_for
from tests.support.hvprof.recorded import PROGRAMS, RECORD, mpirun, own_mpi, run

SOURCE = PROGRAMS / "known_messages.c"
_AFTER = 3  # lines of a call


def _time_s(cost: OperationCost) -> float:
    return cost.time_s


def _reported(folder: Path) -> None:
    analysis = Analysis(hvprof.load(folder))
    stream = StringIO()
    render(analysis, Console(file=stream, width=160))
    first = analysis.sites[0]
    line = first.place.partition(" ")[0]
    assert "Call sites" in stream.getvalue()
    assert line in stream.getvalue()
    assert as_json(analysis)["sites"][0]["place"] == first.place
    page = report_page(Page(analysis))
    assert line in page[page.index("<body") : page.index('"application/json"')]
    cost = max(operation_costs(analysis.recording, call_costs(analysis.recording)), key=_time_s)
    of_it = [one for one in analysis.sites if one.operation == cost.operation]
    assert sum(one.time_s for one in of_it) == pytest.approx(cost.time_s, rel=0.01)
    assert sum(one.wait_s for one in of_it) == pytest.approx(cost.wait_s, rel=0.01)


def test_a_sentence_names_the_place_in_few_words() -> None:
    places = {
        "halo.c:212 (swap)": "at halo.c:212",
        "swap in libhalo.so": "called by swap",
        "libhalo.so + 0x12": "in libhalo.so",
        "train.py:42": "at train.py:42",
        "<string>:1": "at <string>:1",
        "unknown": "",
    }
    for place, short in places.items():
        assert SiteCost("waitall", place, 2, 1, 1.0, 1.0, 1.0, 0.0, 10.0).short == short
    assert readable("__pyx_pw_6mpi4py_3MPI_4Comm_143Allreduce") == "mpi4py.MPI.Comm.Allreduce"
    assert readable("exchange") == "exchange"
    assert readable("void MPI::scatter<long>(int*, std::vector<A, B<A> > const&)") == "MPI::scatter"
    assert readable("std::vector<int> (anonymous namespace)::swap(int)") == "{anonymous}::swap"
    assert readable("Halo::operator()(int)") == "Halo::operator()(int)"


def test_calls_are_counted_by_the_line_that_makes_them(tmp_path: Path) -> None:
    program, folder = tmp_path / "program", tmp_path / "run"
    # Without position-independent code, addresses in the file are absolute.
    compile_for(own_mpi(), "-g", "-no-pie", SOURCE, "-o", program)
    # Its name is relative to a folder that hvprof report knows nothing of.
    done = run([*RECORD, "-o", folder, "--", *mpirun(3), "./program"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = SOURCE.read_text().splitlines()
    for rank in hvprof.load(folder).ranks:
        calls = Counter[str]()
        places = places_of(rank.sites)
        for site in rank.sites:
            calls[site.operation] += site.calls
            shown = places[site.key]
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
    _reported(folder)
    # Without addr2line a place is known by its function.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "")
        by_symbols = places_of(hvprof.load(folder).ranks[0].sites)
    assert {*by_symbols.values()} == {
        f"{function} in program" for function in ("kinds", "one_sided", "main")
    }
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


def test_calls_of_python_are_counted_by_its_lines(tmp_path: Path) -> None:
    """Also of two threads at once, whose calls hold no GIL."""
    source, folder = PROGRAMS / "known_lines.py", tmp_path / "run"
    done = run([*RECORD, "-o", folder, "--", *mpirun(2), sys.executable, source])
    assert done.returncode == 0, done.stderr
    expected = {
        (operation, f"known_lines.py:{number}", int(calls))
        for number, line in enumerate(source.read_text().splitlines(), 1)
        for operation, calls in re.findall(r"# ([a-z_]+) (\d+)$", line)
    }
    for rank in hvprof.load(folder).ranks:
        places = places_of(rank.sites)
        found = {(site.operation, places[site.key], site.calls) for site in rank.sites}
        assert expected <= found, found - expected
        of_module = [one for one in rank.sites if not one.line]
        # What mpi4py calls when no line of Python is run.
        assert {site.operation for site in of_module} <= {"comm_free"}
