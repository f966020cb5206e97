"""What every test may use: `launch` runs a Python program at several ranks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

from hvd_ext import process
from testbed import ranks

# How long an example takes is the machine's matter.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

ROOT = ranks.ROOT
BIN = Path(sys.executable).parent

Launch = Callable[..., "subprocess.CompletedProcess[str]"]


def rank_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a test's ranks: this checkout, this Python's MPI, one thread each."""
    # horovodrun cannot be told that ranks share cores; waiting ranks must yield them.
    return ranks.environment({"OMPI_MCA_mpi_yield_when_idle": "1", **extra})


def run_to_end(
    command: Sequence[str], env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a command; both its streams are in `stdout`. Nothing of it outlives the call."""
    done = process.run_to_end(command, env, timeout, ROOT)
    if done.returncode == process.TIMED_OUT:
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
        start = {"hvd-launch": ranks.hvd_launch, "horovodrun": ranks.horovodrun}[launcher]
        return run_to_end([*start(np), *program], rank_environment(env or {}), timeout)

    return launch
