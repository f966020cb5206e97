"""A training that is asked to stop: a checkpoint of all ranks, one code, and it goes on."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from testbed.ranks import ROOT, environment
from tests.support.launch.on_every_mpi import wait_for

TINY = ("--synthetic", "--blocks", "1", "--features", "4", "--patch", "8", "--batch-size", "1")
FLAGS = (*TINY, "--log-every", "1", "--threads", "1", "--checkpoint-every", "1000000")


def start(output: Path, *flags: str) -> subprocess.Popen[str]:
    launcher = [sys.executable, "-m", "hvd_launch", "run", "-np", "2", "--", sys.executable]
    return subprocess.Popen(
        [*launcher, "-m", "edsr.train", *FLAGS, "--output", str(output), *flags],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def steps(output: Path) -> list[int]:
    if not (output / "log.csv").exists():
        return []
    with (output / "log.csv").open() as stream:
        return [int(row["step"]) for row in csv.DictReader(stream) if row["lr"]]


def ranks_of(job: subprocess.Popen[str]) -> list[psutil.Process]:
    """The trainings themselves, without their keepers."""
    family = psutil.Process(job.pid).children(recursive=True)
    trainers = [p for p in family if "edsr.train" in p.cmdline()]
    return [p for p in trainers if not p.children()]


@pytest.mark.parametrize(
    ("whom", "number"),
    [
        ("a rank", signal.SIGTERM),
        pytest.param("all ranks", signal.SIGUSR1, marks=pytest.mark.long),
        pytest.param("the launcher", signal.SIGUSR1, marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_in_a_checkpoint_that_is_gone_on_from(
    tmp_path: Path, whom: str, number: signal.Signals
) -> None:
    job = start(tmp_path, "--steps", "1000000")
    try:
        wait_for(lambda: len(steps(tmp_path)) > 2)
        if whom == "the launcher":
            job.send_signal(number)
        for rank in {"a rank": ranks_of(job)[-1:], "all ranks": ranks_of(job)}.get(whom, []):
            rank.send_signal(number)
        told, _ = job.communicate(timeout=60)
    finally:
        job.kill()
    assert job.returncode == 99, told
    last = steps(tmp_path)[-1]
    assert f"stopped after step {last} ({number.name})" in told
    assert torch.load(tmp_path / "checkpoint.pt")["step"] == last
    assert "Traceback" not in told


@pytest.mark.long
@pytest.mark.parametrize("gone_on_from", [False, True])
def test_time_that_is_up_ends_in_a_checkpoint(tmp_path: Path, gone_on_from: bool) -> None:
    job = start(tmp_path, "--steps", "1000000", "--stop-after", "1s")
    told, _ = job.communicate(timeout=120)
    last = steps(tmp_path)[-1]
    assert job.returncode == 99, told
    assert f"stopped after step {last} (its time is up)" in told
    assert torch.load(tmp_path / "checkpoint.pt")["step"] == last
    if not gone_on_from:
        return
    again = start(tmp_path, "--steps", str(last + 3), "--resume")
    told, _ = again.communicate(timeout=120)
    assert again.returncode == 0, told
    assert steps(tmp_path) == list(range(1, last + 4))
