"""What every test may use: `launch` runs a Python program at several ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

from benchmarks import harness

# How long an example takes is the machine's matter.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent

Launch = Callable[..., "subprocess.CompletedProcess[str]"]


def rank_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a test's ranks: this checkout, this Python's MPI, one thread each."""
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        # horovodrun cannot be told that ranks share cores; waiting ranks must let go of them.
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "profiling", ROOT / "launch"))),
        **extra,
    }


def run_to_end(
    command: Sequence[str], env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a command; both its streams are in `stdout`. Nothing of it outlives the call."""
    done = harness.run_to_end(command, env, timeout, ROOT)
    if done.returncode == harness.TIMED_OUT:
        pytest.fail(f"{command} was not done after {timeout} s:\n{done.stdout}")
    return done


@pytest.fixture
def launch() -> Launch:
    """`launch(np, args)` runs `python *args` at np ranks and returns code and output.

    Further arguments: `env`, variables to set; `timeout` in s, after which the whole job
    is killed and the test fails with its output; `launcher`, "hvd-launch" or "horovodrun".
    """

    def launch(
        np: int,
        args: Sequence[object],
        env: Mapping[str, str] | None = None,
        timeout: float = 120,
        launcher: str = "hvd-launch",
    ) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, *map(str, args)]
        start = {
            "hvd-launch": [sys.executable, "-m", "hvd_launch", "run", "-np", str(np), "--"],
            "horovodrun": [str(BIN / "horovodrun"), "-np", str(np), "-H", f"localhost:{np}"],
        }[launcher]
        return run_to_end([*start, *program], rank_environment(env or {}), timeout)

    return launch
