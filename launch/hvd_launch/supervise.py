"""Runs a launcher to its end: passes its output on, its signals down, and leaves no process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from hvd_ext.errors import HvdExtError
from hvd_launch.backends import Launch
from hvd_launch.job_output import Failure, JobOutput

# A launcher that was asked to end gets this long for each step: its own way, SIGTERM, SIGKILL.
_PATIENCE_S = 5.0
_LOOK_S = 0.1
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class _Supervisor:
    """One job. Orphans of its launcher become this process's children, so none is lost."""

    def __init__(self, launch: Launch, reporting: bool) -> None:
        self._output = JobOutput()
        self._signalled: list[tuple[int, float]] = []
        self._reader_gone = False
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        stream = subprocess.PIPE if reporting else None
        try:
            self._process = subprocess.Popen(
                launch.argv,
                env=launch.environ,
                stdout=stream,
                stderr=stream,
                # Ctrl-C is this process's, which sends it on: once, not twice.
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        except OSError as error:
            raise HvdExtError(f"{launch.argv[0]} cannot be started: {error.strerror}") from error
        self._readers = [
            threading.Thread(target=self._pass_on, args=pair, daemon=True)
            for pair in ((self._process.stdout, 1), (self._process.stderr, 2))
            if pair[0] is not None
        ]

    def run(self) -> int:
        """Wait for the job's end; returns its exit code."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        for reader in self._readers:
            reader.start()
        while True:
            try:
                code = self._process.wait(_LOOK_S)
                break
            except subprocess.TimeoutExpired:
                self._insist()
        _sweep()
        for reader in self._readers:
            reader.join(_PATIENCE_S)
        return self._conclude(code)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signalled.append((number, time.monotonic()))
        if len(self._signalled) == 1:
            self._process.send_signal(number)

    def _insist(self) -> None:
        """Go on to SIGTERM and SIGKILL with a launcher that stays; at once if asked twice."""
        if self._reader_gone and not self._signalled:
            self._on_signal(signal.SIGTERM, None)
        if not self._signalled:
            return
        waited_s = time.monotonic() - self._signalled[0][1]
        if waited_s > 2 * _PATIENCE_S or len(self._signalled) > 1:
            for pid in descendants(os.getpid()):
                _kill(pid, signal.SIGKILL)
        elif waited_s > _PATIENCE_S:
            self._process.terminate()

    def _pass_on(self, source: BinaryIO, target: int) -> None:
        for line in source:
            shown = self._output.line(line, target)
            try:
                while shown:
                    shown = shown[os.write(target, shown) :]
            except OSError:
                # Nobody reads any more (`| head`): the job has no reason to go on.
                self._reader_gone = True
                return

    def _conclude(self, code: int) -> int:
        code = code if code >= 0 else 128 - code
        if self._reader_gone:
            return 0
        if self._signalled:
            number = self._signalled[0][0]
            print(
                f"hvd-launch: {signal.Signals(number).name}: the job was ended on all its ranks",
                file=sys.stderr,
            )
            return 128 + number
        failure = self._output.failure
        if failure is not None and (code != 0 or failure.code):
            self._show(failure)
            code = failure.code or code
        elif code != 0 and self._readers:
            print(
                f"hvd-launch: the job ended with code {code}, and its launcher does not tell which "
                "rank failed (so it is with MPICH after MPI_Abort)",
                file=sys.stderr,
                flush=True,
            )
        for line in self._output.held:
            os.write(2, line)
        return code

    def _show(self, failure: Failure) -> None:
        lines = self._output.last_lines(failure.rank)
        said = "Its last lines:" if lines else "It printed nothing."
        if lines and self._output.just_shown(failure.rank):
            said, lines = "Its last lines are those above.", []
        print(f"hvd-launch: rank {failure.rank} {failure.how}. {said}", file=sys.stderr, flush=True)
        for line in lines:
            os.write(2, line)


def run_job(launch: Launch, reporting: bool) -> int:
    """Run a job and return its exit code: that of the rank which failed first.

    Args:
        launch: what to start.
        reporting: the ranks run under `hvd-launch exec --report`, whose lines are read.

    Raises:
        HvdExtError: the launcher cannot be started.
    """
    return _Supervisor(launch, reporting).run()


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those that they have; zombies left out."""
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
    """Each process and its parent."""
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                stat = (path / "stat").read_text(errors="replace")
            except OSError:  # gone by now
                continue
            # The name, in brackets, may hold anything.
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state not in "ZX":
                yield int(path.name), int(parent)


def _sweep() -> None:
    """End what the launcher left behind: it gets a moment to end by itself."""
    end = time.monotonic() + _PATIENCE_S
    number = None
    while left := descendants(os.getpid()):
        now = time.monotonic()
        if now > end - _PATIENCE_S / 2:
            number = signal.SIGKILL if now > end else signal.SIGTERM
        for pid in left:
            if number is not None:
                _kill(pid, number)
        time.sleep(_LOOK_S / 5)


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _end_with_parent() -> None:
    """In the launcher before it starts: if this process is killed, the job ends too."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
