"""The MPI libraries that tests use, programs for their ranks, and hvd-launch on them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(sys.executable).parent
LIBRARIES = {
    "environment": HERE,
    "openmpi5": ROOT / ".venvs" / "openmpi5" / "bin",
    "mpich5": ROOT / ".venvs" / "mpich5" / "bin",
}
# One write for a line: under --bare the ranks share standard output.
SUM = """
import os
from mpi4py import MPI
os.write(1, b"sum %d\\n" % MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank))
"""
# Rank 1 ends in the way asked for while rank 0 would go on for long.
FAIL = """
import os, signal, sys, time
from mpi4py import MPI
comm, how = MPI.COMM_WORLD, sys.argv[1]
for number in range(30):
    print("rank", comm.rank, "line", number)
if comm.rank == 1:
    print("last words")
    time.sleep(0.5)
    if how == "abort":
        comm.Abort(43)
        time.sleep(60)  # MPICH's may return before the launcher has ended the rank
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.excepthook = lambda *error: (print("ValueError: boom", file=sys.stderr), os._exit(42))
    raise ValueError("boom")
while True:
    print("rank 0 goes on")
    time.sleep(0.05)
"""
WAIT = "import os, sys, time; open(f'{sys.argv[1]}/{os.getpid()}', 'w').close(); time.sleep(100)"


def bin_of(name: str) -> Path:
    """The bin folder of an environment with an MPI and mpi4py; skips the test if there is none."""
    folder = LIBRARIES[name]
    if not (folder / "python").exists():
        pytest.skip(f"no {folder}: run `make mpis`")
    return folder


def hvd_launch(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hvd_launch", *arguments]


def environment(library: Path, **extra: str) -> dict[str, str]:
    return os.environ | {
        "PATH": f"{library}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'launch'}{os.pathsep}{ROOT / 'profiling'}",
        **extra,
    }


def start(*arguments: str, library: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        hvd_launch(*arguments),
        env=environment(library),
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(library: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        hvd_launch(*arguments),
        env=environment(library, **extra),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=100,
        check=False,
    )


def wait_for(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
