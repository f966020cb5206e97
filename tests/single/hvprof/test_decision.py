"""The decision whether all ranks have a trace, which ranks take through a folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.hvprof.recorded import PROGRAMS, own_mpi


def test_ranks_that_give_up_decide_as_those_that_do_not(tmp_path: Path) -> None:
    program = tmp_path / "decides"
    source = PROGRAMS / "decides_on_traces.c"
    subprocess.run([own_mpi() / "mpicc", "-pthread", source, "-o", program, "-ldl"], check=True)
    done = subprocess.run(
        [program, tmp_path, "120"], capture_output=True, text=True, timeout=120, check=True
    )
    yes, no, mixed = map(int, done.stdout.split())
    assert mixed == 0
    assert yes + no == 120
    assert min(yes, no) >= 1, "the race was not run: all rounds ended alike"
    assert done.stderr.count("clocks are not compared") == no, "one line a job"
