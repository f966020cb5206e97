"""Groups that end and begin again in one process, on other ranks and after a rank has died."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from testbed import ranks
from tests.support.launch.launching import rank_environment, run_to_end


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


def test_ranks_of_mpi_that_miss_one_are_refused_a_group_without_it(launch: Any) -> None:
    done = launch(3, ["tests/programs/c10d/lives.py", "refused", "by-mpi"])
    assert done.returncode != 0, done.stdout
    for process in (0, 2):
        said = f"process {process}: init_process_group(): ranks that MPI started cannot continue"
        assert f"{said} without one of them, as those of torchrun can: rank 1 (" in done.stdout
    assert "done" not in done.stdout
