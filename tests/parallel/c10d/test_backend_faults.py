"""A rank of the backend's that fails: the others end, name it, and leave nothing."""

from __future__ import annotations

import socket
import time

import pytest


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("absent", "rank 2 ({host}) did not reach all_reduce() within 3 s"),
        pytest.param(
            *("leave", "rank 2 ({host}) ended before all_reduce()"), marks=pytest.mark.long
        ),
        pytest.param("kill", "signal 9", marks=pytest.mark.long),
        pytest.param(
            *(
                "group",
                "rank 2 ({host}) did not reach new_group() within 3 s: look for its last lines "
                "above; if it was only slow, raise the timeout of the process group",
            ),
            marks=pytest.mark.long,
        ),
        pytest.param("raise", "ValueError: loss is NaN", marks=pytest.mark.long),
    ],
)
def test_the_job_ends_and_the_rank_is_named(launch, how, says):
    start = time.monotonic()
    done = launch(3, ["tests/programs/c10d/backend_fault.py", how], timeout=90)
    assert done.returncode != 0, done.stdout
    assert says.format(host=socket.gethostname()) in done.stdout
    assert "all done" not in done.stdout
    assert time.monotonic() - start < 60


@pytest.mark.long
def test_a_program_may_end_with_work_under_way(launch):
    done = launch(3, ["tests/programs/c10d/backend_fault.py", "exit"], timeout=90)
    assert done.returncode == 0, done.stdout
