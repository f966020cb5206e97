"""A benchmark that is ended ends its ranks."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvd_ext.system.process import descendants
from testbed.ranks import ROOT, environment


def workers(pid: int) -> list[int]:
    """The ranks below a process, without their launchers."""
    found = []
    for child in descendants(pid):
        try:
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        except OSError:  # gone by now
            continue
        if words[1:2] == [b"-m"] and words[3:4] == [b"--worker"]:
            found.append(child)
    return found


@pytest.mark.parametrize(
    ("number", "command"),
    [
        (signal.SIGTERM, "overlap --rounds 100000"),
        pytest.param(signal.SIGINT, "overlap --rounds 100000", marks=pytest.mark.long),
        # Started by hvd-launch, not by horovodrun.
        pytest.param(signal.SIGTERM, "allreduce_sweep --np 2", marks=pytest.mark.long),
    ],
)
def test_no_rank_outlives_its_benchmark(number: signal.Signals, command: str) -> None:
    benchmark = subprocess.Popen(
        [sys.executable, "-m", *f"benchmarks.{command}".split()],
        cwd=ROOT,
        env=environment({"OMPI_MCA_mpi_yield_when_idle": "1"}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 120
    while len(ranks := workers(benchmark.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(ranks) == 2
    benchmark.send_signal(number)
    _, said = benchmark.communicate(timeout=60)
    while any(map(alive, ranks)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, ranks))
    assert "Traceback" not in said
    assert (
        benchmark.returncode
        == {
            signal.SIGTERM: 128 + signal.SIGTERM,
            signal.SIGINT: 130,
            signal.SIGKILL: -signal.SIGKILL,
        }[number]
    )


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
