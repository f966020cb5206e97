"""How tests start ranks: the launcher's command line, and the ranks' environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hvd_ext.system import process
from testbed import ranks

ROOT = ranks.ROOT
BIN = Path(sys.executable).parent
# Each gives the command line that starts so many ranks; a program follows.
LAUNCHERS = {"hvd-launch": ranks.hvd_launch, "horovodrun": ranks.horovodrun}
# For ranks that are not to find Horovod, though it is installed.
_HIDES_HOROVOD = ROOT / "tests" / "support" / "without_horovod"
WITHOUT_HOROVOD = {"PYTHONPATH": os.pathsep.join(map(str, (_HIDES_HOROVOD, *ranks.PACKAGES)))}


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
