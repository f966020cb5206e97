"""Starting ranks on this machine: their environment, their launcher, what rank 0 reports."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hvd_ext.errors import HvdExtError
from hvd_ext.system.process import TIMED_OUT, run_to_end

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (ROOT, ROOT / "profiling", ROOT / "launch")
_REPORT = "HVD_EXT_TESTBED_REPORT"
_TAIL_LINES = 25


class JobError(HvdExtError):
    """Ranks failed or took too long; the message ends with their last lines."""


def environment(
    variables: Mapping[str, str] | None = None, python: str = sys.executable
) -> dict[str, str]:
    """The environment of ranks: this checkout's packages, one thread each.

    Args:
        variables: set besides these.
        python: the interpreter of the ranks; the programs next to it come first.
    """
    paths = [*map(str, PACKAGES), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join((str(Path(python).parent), os.environ.get("PATH", os.defpath))),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        **(variables or {}),
    }


def horovodrun(size: int, python: str = sys.executable) -> list[str]:
    """The command line that starts `size` ranks on this machine; a program follows."""
    program = str(Path(python).parent / "horovodrun")
    return [program, "-np", str(size), "-H", f"localhost:{size}"]


def hvd_launch(size: int, python: str = sys.executable) -> list[str]:
    """As `horovodrun`, for programs that may do without Horovod."""
    return [python, "-m", "hvd_launch", "run", "-np", str(size), "--"]


def launch(
    module: str,
    size: int,
    arguments: Sequence[str],
    timeout_s: float = 900,
    start: Sequence[str] | None = None,
    variables: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> Any:
    """Run `python -m module --worker ARGUMENTS` at `size` ranks; return rank 0's `report`.

    Args:
        module: what each rank runs.
        size: how many, on this machine or its emulated hosts.
        arguments: of the module.
        timeout_s: after which the job has failed.
        start: a command line to start the ranks with, in place of horovodrun's.
        variables: environment variables to set.
        python: the interpreter of the ranks.

    Raises:
        JobError: the job failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        done = run_to_end(
            [*(start or horovodrun(size, python)), python, "-m", module, "--worker", *arguments],
            environment({_REPORT: str(result), **(variables or {}), **sharing_cores(size)}, python),
            timeout_s,
        )
        if done.returncode != 0 or not result.exists():
            outcome = f"failed with exit code {done.returncode}"
            if done.returncode == TIMED_OUT:
                outcome = f"took more than {timeout_s:g} s"
            raise JobError(f"{module} {outcome}:\n{last_lines(done.stdout)}")
        return json.loads(result.read_text())


def sharing_cores(size: int) -> dict[str, str]:
    """Variables for ranks of one thread where there are fewer cores than ranks.

    If Open MPI has a slot for every rank, it busy-waits, which takes the
    cores from ranks that share them. mpirun would see to this.
    """
    return {"OMPI_MCA_mpi_yield_when_idle": "1"} if size > (os.cpu_count() or 1) else {}


def last_lines(output: str) -> str:
    """The part of a job's output that an error should show."""
    return "\n".join(output.splitlines()[-_TAIL_LINES:])


def report(result: Any) -> None:
    """Hand a job's result to the process that launched it (rank 0 only)."""
    Path(os.environ[_REPORT]).write_text(json.dumps(result))
