"""Hosts with different numbers of ranks: every door serves them alike on every rank."""

from __future__ import annotations

import pytest

from tests.support.launch.launching import WITHOUT_HOROVOD


@pytest.mark.parametrize(
    ("ranks", "horovod"),
    [
        ((1, 2), "without"),
        pytest.param((3, 1), "horovod", marks=pytest.mark.long),
        pytest.param((1, 2), "horovod", marks=pytest.mark.long),
        pytest.param((3, 1), "without", marks=pytest.mark.long),
    ],
)
def test_every_collective_of_every_door(build, launch_on, ranks, horovod):
    env = WITHOUT_HOROVOD if horovod == "without" else {}
    with build(2) as hosts:
        done = launch_on(hosts, ranks, ["-m", "tests.programs.job.every_door", horovod], env, 240)
    assert done.returncode == 0, done.stdout
    assert all(f"ok {rank}" in done.stdout for rank in range(sum(ranks))), done.stdout
