"""Groups that end and begin again in one process, on other ranks and after a rank has died."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed import ranks
from tests.support.launch.launching import rank_environment, run_to_end
from tests.support.launch.on_every_mpi import LIBRARIES, environment, hvd_launch


def lives(part: str) -> str:
    path = os.pathsep.join(map(str, ranks.PACKAGES))
    program = [sys.executable, "tests/programs/c10d/lives.py", part]
    done = run_to_end(program, rank_environment({"PYTHONPATH": path}), 240)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.long
def test_a_hundred_lives_leave_nothing() -> None:
    assert lives("again").count("done") == 3


def test_processes_that_miss_a_rank_go_on_without_it() -> None:
    output = lives("without")
    assert output.count("done") == 2, output
    for process in (0, 2):
        assert f"process {process}: rank 1 (" in output, output


@pytest.mark.long
def test_a_hundred_lives_of_mpis_ranks_leave_nothing(launch: Any) -> None:
    done = launch(3, ["tests/programs/c10d/lives.py", "again", "by-mpi"], timeout=240)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("done") == 3


@pytest.mark.long
@pytest.mark.parametrize("library", [*LIBRARIES][1:], indirect=True)
@pytest.mark.parametrize("part", ["again", "refused"])
def test_lives_on_every_mpi(library: Path, part: str) -> None:
    torch = pytest.importorskip("torch")
    program = [str(library / "python"), "tests/programs/c10d/lives.py", part, "by-mpi"]
    variables = {"OMP_NUM_THREADS": "1", "HVD_EXT_TEST_TORCH": str(Path(torch.__file__).parents[1])}
    command = hvd_launch("run", "-np", "3", "--", *program)
    done = run_to_end(command, environment(library, **variables), 240)
    if part == "again":
        assert done.returncode == 0, done.stdout
        assert done.stdout.count("done") == 3
    else:
        # Some libraries' launchers lose the last words of one of the two.
        assert_refused(done, at_least=1)


def test_ranks_of_mpi_that_miss_one_are_refused_a_group_without_it(launch: Any) -> None:
    done = launch(3, ["tests/programs/c10d/lives.py", "refused", "by-mpi"])
    assert_refused(done, at_least=2)


def assert_refused(done: Any, at_least: int) -> None:
    assert done.returncode != 0, done.stdout
    refusals = re.findall(
        r"process [02]: init_process_group\(\): ranks that MPI started cannot continue without one "
        r"of them, as those of torchrun can: rank 1 \(",
        done.stdout,
    )
    assert len(set(refusals)) >= at_least, done.stdout
    assert "done" not in done.stdout
