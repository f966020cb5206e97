"""Runs a launcher to its end: passes output and signals on, and leaves no process behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import BinaryIO

from hvd_ext.errors import HvdExtError
from hvd_ext.system.process import descendants, dying_with_parent
from hvd_launch.backends.libraries import Launch
from hvd_launch.rank.relay import is_relay
from hvd_launch.run.output import OUTPUT, FailedRank, JobOutput, arrived

# A launcher that was asked to end gets this long for each stage: its own end, SIGTERM, SIGKILL.
_PATIENCE_S = 5.0
_LOOK_S = 0.1
# Signals that end the job; all others are for the ranks, and are only passed on.
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_HANDED_ON = (signal.SIGUSR1, signal.SIGUSR2)
# A launcher returns one of these if ranks did not handle the signal: shells' code, and MPICH's.
_CODES_OF_SIGTERM = (128 + signal.SIGTERM, signal.SIGTERM)
_PR_SET_CHILD_SUBREAPER = 36


class _Supervisor:
    """One job. Orphans of its launcher become this process's children, so none is lost."""

    def __init__(self, launch: Launch, reporting: bool, grace_s: float) -> None:
        self._output = JobOutput()
        self._launch = launch
        self._grace_s = grace_s
        self._insisted = False
        self._signalled: list[tuple[int, float]] = []
        self._reader_gone = False
        self._lost: set[int] = set()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        stream = subprocess.PIPE if reporting else None
        try:
            self._process = subprocess.Popen(
                launch.argv,
                env=launch.environ,
                stdout=stream,
                stderr=stream,
                # This process handles Ctrl-C and passes it on, so that ranks get it once and not
                # twice.
                start_new_session=True,
                preexec_fn=dying_with_parent(),
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
        _handle(_ENDS, self._on_signal)
        _handle(_HANDED_ON, self._hand_on)
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
        if len(self._signalled) > 1:
            return
        ranks: list[int] = []
        if number == signal.SIGTERM and not self._reader_gone and self._readers:
            # mpirun would kill them a second after it.
            ranks = [pid for pid in descendants(os.getpid()) if is_relay(pid)]
            if len(ranks) < self._launch.size and self._launch.asks_to_end:
                ranks, number = [], self._launch.asks_to_end
        for pid in ranks or [self._process.pid]:
            _kill(pid, number)

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        """Pass a signal to the ranks: by their relays here, or by the launcher to other hosts."""
        ranks = [pid for pid in descendants(os.getpid()) if is_relay(pid)]
        if len(ranks) < self._launch.size:
            if number == self._launch.dies_of:
                name = signal.Signals(number).name
                _say(f"{name}: not passed on: this launcher does not pass it on to other hosts")
                return
            ranks = [self._process.pid]
        for pid in ranks:
            _kill(pid, number)

    def _insist(self) -> None:
        """Send SIGTERM, then SIGKILL, to a job that does not end; at once at a second request.

        The launcher is killed last, or at the third request, because it cleans up after ranks
        (/dev/shm).
        """
        if self._reader_gone and not self._signalled:
            self._on_signal(signal.SIGTERM, None)
        if not self._signalled:
            return
        (number, since_s), asked = self._signalled[0], len(self._signalled)
        waited_s = time.monotonic() - since_s
        if number == signal.SIGTERM and not self._reader_gone:
            waited_s -= self._grace_s - _PATIENCE_S
        self._insisted |= waited_s > _PATIENCE_S or asked > 1
        if waited_s > 2 * _PATIENCE_S or asked > 1:
            for pid in descendants(os.getpid()):
                if pid != self._process.pid or waited_s > 3 * _PATIENCE_S or asked > 2:
                    _kill(pid, signal.SIGKILL)
        elif waited_s > _PATIENCE_S:
            self._process.terminate()

    def _pass_on(self, source: BinaryIO, stream: int) -> None:
        for raw in source:
            line, target = arrived(raw, stream)
            shown = self._output.line(line, target)
            try:
                if target not in self._lost:
                    _write(target, shown)
            except BrokenPipeError:
                # The reader has closed the pipe (`| head`), so the job need not continue.
                self._reader_gone = True
                self._lost.add(target)
            except OSError as error:
                # A full disk should not end a training. Its lines must still be read.
                self._lost.add(target)
                name = "output" if target == OUTPUT else "error"
                _say(f"standard {name} cannot be written: {error.strerror}; the job continues")

    def _conclude(self, code: int) -> int:
        code = code if code >= 0 else 128 - code
        if self._reader_gone:
            return 0
        if self._signalled:
            number = self._signalled[0][0]
            theirs = not self._insisted and code not in _CODES_OF_SIGTERM
            if number == signal.SIGTERM and theirs:
                _say(f"SIGTERM: the ranks ended the job with code {code}")
                return code
            _say(f"{signal.Signals(number).name}: ended the job on all its ranks")
            return 128 + number
        # In a successful job, a line like a library's abort message is a rank's output.
        failure = self._output.failure if code != 0 else self._output.reported
        if failure is not None and (code != 0 or failure.code):
            self._show(failure)
            code = failure.code or code
        elif code != 0 and self._readers:
            _say(f"the job ended with code {code}; its launcher does not say which rank failed")
        _write_error(self._output.held)
        return code or int(bool(self._lost))

    def _show(self, failure: FailedRank) -> None:
        lines = self._output.last_lines(failure.rank)
        said = "Its last lines:" if lines else "It printed nothing."
        if lines and self._output.just_shown(failure.rank):
            said, lines = "Its last lines are those above.", []
        _say(f"rank {failure.rank} {failure.how}. {said}")
        _write_error(lines)


def run_job(launch: Launch, reporting: bool, grace_s: float) -> int:
    """Run a job and return its exit code: that of the rank that failed first.

    Args:
        launch: the command to start.
        reporting: whether the ranks run under `hvd-launch exec --report`, whose lines are read.
        grace_s: how long ranks may take to end after SIGTERM.

    Raises:
        HvdExtError: the launcher cannot be started.
    """
    return _Supervisor(launch, reporting, grace_s).run()


def _sweep() -> None:
    """End processes that the launcher left behind, after a moment to end by themselves."""
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


def _write(target: int, data: bytes) -> None:
    """Write all data, also to a non-blocking pipe."""
    while data:
        try:
            data = data[os.write(target, data) :]
        except BlockingIOError:
            select.select([], [target], [])


def _write_error(lines: Iterable[bytes]) -> None:
    # If that fails too, the exit code still reports it.
    with contextlib.suppress(OSError):
        for line in lines:
            _write(2, line)


def _say(text: str) -> None:
    _write_error([f"hvd-launch: {text}\n".encode()])


def _handle(
    numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], object]
) -> None:
    """Handle signals, except those that are ignored from the start (nohup)."""
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
