"""The jobs that hvprof watches, on this machine or on emulated hosts."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from benchmarks.diagnosis.slow import HELD_BACK, QUOTA_CORES
from benchmarks.diagnosis.worker import LINKS, LOSSY_LINK, ON_HOSTS, SLOW_LINK
from benchmarks.harness import BenchmarkError
from hvd_ext.system.process import descendants
from hvprof.live.signs import SILENT_ON_ANOTHER_HOST_S
from testbed import ranks
from testbed.cpu_quota import cpu_quota
from testbed.emulated_hosts import Hosts, emulated_hosts

# On other hosts, hvprof cannot tell earlier that a process is stopped.
_LIMIT_S, _LIMIT_ON_HOSTS_S = 2.0, SILENT_ON_ANOTHER_HOST_S + 1
HOSTS = 4
_GBIT = 0.5
_PATIENCE_S = 60.0


def limit_s(where: str) -> float:
    """How long a rank waits before hvprof reports that the job hangs."""
    return _LIMIT_ON_HOSTS_S if where in ON_HOSTS else _LIMIT_S


@contextlib.contextmanager
def job_with(
    fault: str, size: int, where: str, folder: Path, mark: Path, mpi: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """A recorded job; nothing of it outlives the block.

    Args:
        fault: what is injected.
        size: ranks of the job.
        where: how they wait, as the worker takes it.
        folder: of the recording.
        mark: an empty file, made when the fault begins.
        mpi: the library of another environment; "" for this one's.
    """
    python = _python_of(mpi) if mpi else sys.executable
    worker = [python, "-m", "benchmarks.diagnosis", "--worker", "--fault", fault]
    worker += ["--where", where, "--mark", str(mark)]
    if fault in ("is killed", "raises"):
        # The launcher sees a shell, and ends nothing.
        worker = ["sh", "-c", '"$@"; sleep 600', "sh", *worker]
    with contextlib.ExitStack() as stack:
        launcher, variables = ranks.hvd_launch(size, python), ranks.sharing_cores(size)
        if where in ON_HOSTS:
            hosts = stack.enter_context(emulated_hosts(size, _GBIT))
            launcher = hosts.mpirun(1, shutil.which("mpirun", path=_path()) or "mpirun")
            variables = hosts.environment()
        if fault == HELD_BACK:
            mark.with_name("group").symlink_to(stack.enter_context(cpu_quota(QUOTA_CORES)))
        record = [sys.executable, "-m", "hvprof", "record", "--on-hang", str(limit_s(where))]
        job = subprocess.Popen(
            [*record, "-o", str(folder), "--", *launcher, *worker],
            env=ranks.environment(variables, python),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(_end, job)
        if where in ON_HOSTS and fault in LINKS:
            stack.enter_context(_bad_link(fault, hosts, mark))
        yield job


def _python_of(mpi: str) -> str:
    """The Python of another library's environment.

    Raises:
        BenchmarkError: the environment does not exist.
    """
    python = ranks.ROOT / ".venvs" / mpi / "bin" / "python"
    if not python.exists():
        raise BenchmarkError(f"no {python}: run `make mpis`")
    return str(python)


def _path() -> str:
    return ranks.environment()["PATH"]


def _end(job: subprocess.Popen[bytes]) -> None:
    # MPI's launcher removes what the ranks leave, unless it is killed itself.
    job.terminate()
    try:
        job.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        for pid in (*descendants(job.pid), job.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.wait()


@contextlib.contextmanager
def _bad_link(fault: str, hosts: Hosts, mark: Path) -> Iterator[None]:
    """Make the link of the last host bad when the ranks begin to exchange."""
    ended = threading.Event()
    last = len(hosts.names) - 1

    def inject() -> None:
        while not mark.exists():
            if ended.wait(0.05):
                return
        ended.wait(1.0)  # the ranks are in the midst of exchanges
        if fault == SLOW_LINK:
            hosts.set_link(last, _GBIT / 10)
        elif fault == LOSSY_LINK:
            hosts.set_link(last, _GBIT, queue="16kb")
        else:
            hosts.set_carrier(last, up=False)
        mark.touch()

    thread = threading.Thread(target=inject)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        # For the launcher, which ends the ranks.
        hosts.set_carrier(last, up=True)
