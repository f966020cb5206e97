"""hvprof hang, where the ranks are on other hosts: their signs of life, and their links."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster.conftest import Build
from tests.support.hvprof.hanging import PATIENCE_S, cause_of, job, standing
from tests.support.launch.launching import BIN


def wait_until_all_exchange(directory: Path, size: int) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        ranks = standing(directory)
        if len(ranks) == size and all(max(one.entered.values(), default=0) > 8 for one in ranks):
            return
        time.sleep(0.1)
    raise AssertionError("the ranks did not exchange")


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("stopped", "stopped", "rank 1 (host1, pid "),
        ("killed", "gone", "is gone: its process has ended"),
    ],
)
def test_a_process_of_another_host_is_known_by_its_signs(
    how: str, kind: str, said: str, build: Build, tmp_path: Path
) -> None:
    with build(2) as hosts:
        launcher = hosts.mpirun(1, str(BIN / "mpirun"))
        variables = hosts.environment()
        with job(tmp_path / "run", 2, how, launcher=launcher, variables=variables):
            cause = cause_of(tmp_path / "run", kind)
    assert cause.ranks == (1,)
    assert said in cause.sentence


def test_a_link_without_a_carrier_is_named(build: Build, tmp_path: Path) -> None:
    with build(3) as hosts:
        launcher = hosts.mpirun(1, str(BIN / "mpirun"))
        variables = hosts.environment()
        with job(tmp_path / "run", 3, "large", launcher=launcher, variables=variables):
            wait_until_all_exchange(tmp_path / "run", 3)
            hosts.set_carrier(2, up=False)
            cause = cause_of(tmp_path / "run", "link")
            hosts.set_carrier(2, up=True)  # for the launcher, which ends the ranks
    assert cause.ranks == (2,)
    assert "the link of host2 has no carrier (eth0)" in cause.sentence
