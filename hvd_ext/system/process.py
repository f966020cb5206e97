"""Child processes that end when they should, and leave no process behind."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

TIMED_OUT = 124  # the code that timeout(1) gives
_PR_SET_PDEATHSIG = 1
# The time for ranks to print their stacks before they are killed.
_LAST_WORDS_S = 2.0
_GRACE_S, _LOOK_S = 3.0, 0.05


def die_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Ask the kernel for a signal to this process when its parent ends, however it ends.

    As a `preexec_fn` it is called in the child, just before the program starts.
    """
    _libc().prctl(_PR_SET_PDEATHSIG, number)


def dying_with_parent(number: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """Return a `preexec_fn` by which the child gets a signal when this process ends.

    libc is loaded now, because between fork and exec only loaded code is safe to use.
    """
    _libc()
    return functools.partial(die_with_parent, number)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def allow_singleton_mpi() -> None:
    """Let MPI start in a process that no launcher started; to be called before it starts.

    Open MPI would look for its daemon, and fail if that is not on the path that it was built with.
    Other libraries ignore the variable.
    """
    os.environ.setdefault("OMPI_MCA_ess_singleton_isolated", "1")


def keep_mpi_from_workers() -> None:
    """Keep mpi4py from starting MPI in child processes, such as a data loader's workers.

    With spawn and forkserver they import the program's main module again. A worker whose import
    starts MPI would hang, because its rank has started MPI already.
    """
    os.environ.setdefault("MPI4PY_RC_INITIALIZE", "0")


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and their descendants, without zombies."""
    children: dict[int, list[int]] = {}
    for child, parent in _processes():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    queue = [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _processes() -> Iterator[tuple[int, int]]:
    """Return each process and its parent."""
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                stat = (path / "stat").read_text(errors="replace")
            except OSError:  # it has ended by now
                continue
            # The name, in parentheses, may contain any character.
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state not in "ZX":
                yield int(path.name), int(parent)


def end_tree(process: subprocess.Popen[Any], grace_s: float = _GRACE_S) -> None:
    """End a process that still runs, and its descendants.

    The process gets SIGTERM first: a launcher then ends its ranks, also on other hosts, and cleans
    up /dev/shm. Processes that remain after that are killed.
    """
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGSTOP)  # so that it starts no further processes
    family = [process.pid, *descendants(process.pid)]
    process.terminate()
    process.send_signal(signal.SIGCONT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)
    _send(signal.SIGKILL, family)
    process.wait()


def end_all(pids: Iterable[int], grace_s: float = _GRACE_S) -> None:
    """End the processes that still run by SIGTERM, and after `grace_s` seconds by SIGKILL."""
    wanted = set(pids)
    _send(signal.SIGTERM, _running(wanted))
    end_s = time.monotonic() + grace_s
    while (left := _running(wanted)) and time.monotonic() < end_s:
        time.sleep(_LOOK_S)
    _send(signal.SIGKILL, left)


def _running(pids: set[int]) -> set[int]:
    return pids.intersection(pid for pid, _ in _processes())


def _send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a program, in its own session; none of its processes outlives the block."""
    process = subprocess.Popen(
        command,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=dying_with_parent(),
        **options,
    )
    try:
        yield process
    finally:
        # A launcher's ranks are in separate process groups.
        end_tree(process)


def run_to_end(
    command: Sequence[str],
    environment: Mapping[str, str],
    timeout_s: float,
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a launcher; both its streams are in `stdout`.

    No process of it outlives this call. A job that exceeds the time is killed, with exit code
    TIMED_OUT; its Python programs first print their current lines. An exception here (Ctrl-C) also
    ends the job.
    """
    with started(
        command,
        cwd=folder,
        env={**environment, "PYTHONFAULTHANDLER": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        with contextlib.suppress(subprocess.TimeoutExpired):
            output, _ = process.communicate(timeout=timeout_s)
            return subprocess.CompletedProcess(command, process.returncode, output)
        _ask_where(process)
    output, _ = process.communicate()
    return subprocess.CompletedProcess(command, TIMED_OUT, output)


def _ask_where(process: subprocess.Popen[str]) -> None:
    """Make the Python programs of a job print their stacks, which the launcher passes on."""
    family = descendants(process.pid)
    for pid in family:
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text()
            if name.startswith("python") and not descendants(pid):
                os.kill(pid, signal.SIGABRT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_LAST_WORDS_S)
