"""hvprof hang and watch, where ranks are on other hosts: their signs of life, and their links."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hvprof
from hvprof.analysis.analysis import Analysis
from tests.cluster.conftest import Build
from tests.support.hvprof.hanging import PATIENCE_S, cause_of, job, standing
from tests.support.hvprof.recorded import ENVIRONMENT, PROGRAMS, RECORD
from tests.support.hvprof.watching import watched
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
            cause = cause_of(tmp_path / "run", kind, blamed=[1])
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


@pytest.mark.long
@pytest.mark.parametrize("slow", [True, False], ids=["a slow link", "even links"])
def test_a_slow_link_is_named_while_the_job_runs(slow: bool, build: Build, tmp_path: Path) -> None:
    folder, end = tmp_path / "run", tmp_path / "end"
    titles: list[str] = []

    def look_at_the_report() -> None:
        """Until it says the same as hvprof watch; then end the job."""
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            titles[:] = [one.title for one in Analysis(hvprof.load(folder)).advice]
            if not slow or "Look at the link of host2" in titles:
                break
            time.sleep(0.5)
        end.touch()

    with build(3) as hosts:
        if slow:
            hosts.set_link(2, 0.05)
        program = [sys.executable, str(PROGRAMS / "trains.py"), "even", str(end)]
        command = [*RECORD, "-o", folder, "--", *hosts.mpirun(1, str(BIN / "mpirun")), *program]
        environment = {**ENVIRONMENT, **hosts.environment()}
        with subprocess.Popen(list(map(str, command)), env=environment) as job:
            try:
                until = ('"link"', 1) if slow else ('"conditions"', 4)
                _, lines, _ = watched(folder, *until, look_at_the_report, "--every", "3", "--json")
            finally:
                end.touch()
            assert job.wait(PATIENCE_S) == 0
    said = [one for line in lines for one in json.loads(line)["conditions"]]
    if slow:
        assert {(one["kind"], *one["hosts"]) for one in said} == {("link", "host2")}
        assert "the link of host2 delivers" in said[0]["what"]
        assert "Look at the link of host2" in titles
    else:
        assert said == []
        assert not any("link" in title for title in titles)
