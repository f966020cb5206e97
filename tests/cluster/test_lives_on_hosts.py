"""Groups that end and begin again, in other orders, on hosts that share no memory."""

from __future__ import annotations

from typing import Any

import pytest

PROGRAM = "tests/programs/c10d/lives.py"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_hundred_lives_leave_nothing(build: Any, launch_on: Any) -> None:
    with build(2) as hosts:
        done = launch_on(hosts, [2, 1], [PROGRAM, "again", "by-mpi"], timeout=500)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("done") == 3, done.stdout


@pytest.mark.long
def test_a_job_that_misses_a_rank_ends_before_a_smaller_group(build: Any, launch_on: Any) -> None:
    with build(2) as hosts:
        done = launch_on(hosts, [2, 1], [PROGRAM, "refused", "by-mpi"], timeout=200)
    assert done.returncode != 0, done.stdout
    assert "error: rank 1 (host0) did not reach a collective within 5 s" in done.stdout, done.stdout
    assert "done" not in done.stdout
