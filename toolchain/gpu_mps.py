"""NVIDIA's Multi-Process Service (MPS) for a step of gpu_check.py: starts before it, ends after it.

Under MPS processes run on a GPU at once. Without it they take turns, and NCCL's kernels, which wait
for each other while they run, lose whole turns. Its daemon lives in a private folder; no setting
of the GPU is read or changed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpu_run import Check, Failure

CONTROL = "nvidia-cuda-mps-control"
_STOP_WITHIN_S = 20


@contextlib.contextmanager
def mps(check: Check, processes: int) -> Iterator[dict[str, str]]:
    """Run the daemon; gives the variables by which processes find it, each with its share.

    Raises:
        Failure: there is no daemon, or it does not start.
    """
    control = shutil.which(CONTROL, path=check.environment["PATH"])
    if control is None:
        raise Failure(f"{CONTROL} is not on the PATH")
    # Short, as a socket's path may not be long.
    with tempfile.TemporaryDirectory(prefix="mps", ignore_cleanup_errors=True) as folder:
        private = {f"CUDA_MPS_{name}_DIRECTORY": f"{folder}/{name}" for name in ("PIPE", "LOG")}
        for path in private.values():
            Path(path).mkdir()
        try:
            check.run("MPS", 20, control, "-d", **private)
            yield {**private, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(100 // processes)}
        finally:
            _stop(control, check.environment | private)


def _stop(control: str, environment: dict[str, str]) -> None:
    """Ask the daemon to end, also if it did not start in full; else kill it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [control],
            input="quit\n",
            text=True,
            env=environment,
            timeout=_STOP_WITHIN_S,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        return
    pid = Path(environment["CUDA_MPS_PIPE_DIRECTORY"], f"{CONTROL}.pid")
    with contextlib.suppress(OSError, ValueError):
        os.kill(int(pid.read_text()), signal.SIGKILL)
