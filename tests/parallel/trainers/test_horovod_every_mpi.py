"""Horovod built against the libraries beside the environment's: EDSR trains on each."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.launch.on_every_mpi import (
    LIBRARIES,
    environment,
    horovod_bin_of,
    hvd_launch,
    on_two_hosts,
    run,
)

SMALL = ("--blocks", "2", "--features", "8", "--patch", "12", "--log-every", "1")
EDSR = ("-m", "edsr.train", "--synthetic", *SMALL, "--steps", "8", "--batch-size", "2")
REDUCE = """
import horovod.torch as hvd, os, torch
hvd.init()
mean = hvd.allreduce(torch.tensor([hvd.rank() + 1.0])).item()
os.write(1, f"{hvd.mpi_enabled()} {mean}\\n".encode())
"""


OTHERS = pytest.mark.parametrize("name", [name for name in LIBRARIES if name != "environment"])


def losses(folder: Path) -> list[str]:
    return [line.split(",")[1] for line in (folder / "log.csv").read_text().splitlines()]


def check_same_losses(folder: Path) -> None:
    ours, horovods = losses(folder / "hvd_ext"), losses(folder / "horovod")
    assert ours == horovods
    assert ours[0] == "loss"
    assert len(set(ours[1:])) == len(ours[1:]) == 8


@OTHERS
def test_stock_horovod_reduces_through_the_library(name: str) -> None:
    """horovodrun 0.28.1 cannot start all of these."""
    folder = horovod_bin_of(name)
    python = str(folder / "python")
    done = run(folder, "run", "-np", "2", "--", python, "-c", REDUCE, OMP_NUM_THREADS="1")
    assert sorted(done.stdout.splitlines()) == ["[0] True 1.5", "[1] True 1.5"], done.stderr


@pytest.mark.long
@OTHERS
def test_edsr_learns_the_same_by_horovod_and_by_hvd_ext(name: str, tmp_path: Path) -> None:
    folder = horovod_bin_of(name)
    for exchange in ("horovod", "hvd_ext"):
        training = (*EDSR, "--exchange", exchange, "--output", str(tmp_path / exchange))
        job = ("run", "-np", "2", "--", str(folder / "python"), *training)
        done = run(folder, *job, OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "falling back" not in done.stdout + done.stderr
    check_same_losses(tmp_path)


@pytest.mark.long
@OTHERS
def test_edsr_learns_the_same_on_two_emulated_hosts(name: str, tmp_path: Path) -> None:
    folder = horovod_bin_of(name, "network")
    with on_two_hosts(folder) as (enter, hosts, variables):
        for exchange in ("horovod", "hvd_ext"):
            training = (*EDSR, "--exchange", exchange, "--output", str(tmp_path / exchange))
            job = ("run", "-np", "2", "-H", hosts, "--", str(folder / "python"), *training)
            done = subprocess.run(
                [*enter, *hvd_launch(*job)],
                env=environment(folder, **variables, OMP_NUM_THREADS="1"),
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert "falling back" not in done.stdout + done.stderr
    check_same_losses(tmp_path)
