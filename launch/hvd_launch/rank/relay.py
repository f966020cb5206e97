"""Runs a rank's program as a child: prefixes whole lines with the rank, and reports its end.

Launchers can also tag lines, each in its own form, but all of them mix lines that programs write in
pieces. None of them reports in every case which rank failed.
"""

from __future__ import annotations

import fcntl
import functools
import os
import select
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from hvd_ext.errors import HvdExtError
from hvd_ext.system.process import die_with_parent, dying_with_parent

# Prefix of a report; no line of a program starts with it by chance.
MARK = b"\x1ehvd-launch "
# Prefix of a line of standard output that is sent through standard error.
OUTPUT_MARK = b"\x1eo"
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_FORWARDED = (*_ENDS, signal.SIGUSR1, signal.SIGUSR2)
_LOOK_MS = 200
# A line is written at once, as far as a pipe allows, so that no other rank's line gets into it.
_LONGEST = select.PIPE_BUF - 32


class Lines:
    """Cuts incoming pieces into lines. A carriage return also ends a line."""

    def __init__(self) -> None:
        self._rest = b""
        self._returned = False

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the lines that this piece completes, without their ends."""
        if self._returned:
            piece = piece.removeprefix(b"\n")
        self._returned = piece.endswith(b"\r")
        lines = (self._rest + piece).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop()
        whole: list[bytes] = []
        for line in lines:
            whole += _parts(line)
        if len(self._rest) >= _LONGEST:
            *full, self._rest = _parts(self._rest)
            whole += full
        return whole

    def end(self) -> list[bytes]:
        """Return the rest, once the stream has ended."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


def _parts(line: bytes) -> list[bytes]:
    return [line[at : at + _LONGEST] for at in range(0, max(1, len(line)), _LONGEST)]


def is_relay(pid: int) -> bool:
    """Whether a process is one of these, started by `hvd-launch run`."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended by now
        return False
    return words[2:5] == [b"hvd_launch", b"exec", b"--report"]


def run_reporting(
    program: str,
    command: Sequence[str],
    environ: Mapping[str, str],
    rank: int,
    packets: bool = False,
    look: Callable[[], object] = lambda: None,
    asks_to_end: signal.Signals | None = None,
) -> int:
    """Run a rank's program and return its exit code; a signal that ended it also ends this.

    Args:
        program: its path.
        command: its words.
        environ: its environment.
        rank: its rank.
        packets: whether the launcher mixes the output of several ranks, but leaves a packet whole.
        look: called repeatedly while the program runs.
        asks_to_end: a signal by which the launcher passes SIGTERM on.

    Raises:
        HvdExtError: the program cannot be started.
    """
    child: subprocess.Popen[bytes] | None = None
    ended_from_outside = False

    def forward(number: int, frame: FrameType | None) -> None:
        nonlocal ended_from_outside
        number = signal.SIGTERM if number == asks_to_end else number
        ended_from_outside |= number in _ENDS
        if child is not None:
            child.send_signal(number)

    for number in (*_FORWARDED, *filter(None, [asks_to_end])):
        signal.signal(number, forward)
    # A launcher whose output is no longer read may die before it ends its ranks.
    die_with_parent(signal.SIGKILL)
    # A program that writes to a pipe would buffer its lines until it has a block of them.
    environ = {"PYTHONUNBUFFERED": "1", **environ}
    try:
        child = subprocess.Popen(
            command,
            executable=program,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # The program needs the launcher's own descriptors (PMI_FD).
            close_fds=False,
            preexec_fn=functools.partial(_begin, dying_with_parent(signal.SIGKILL), asks_to_end),
        )
    except OSError as error:
        raise HvdExtError(f"{program} cannot be started: {error.strerror}") from error
    _relay(child, rank, packets and _in_packets(), look)
    code = child.wait()
    if code != 0 and not ended_from_outside:
        _write(2, MARK + f"rank {rank} {_ending(code)}\n".encode())
    if code < 0:
        _end_by_signal(-code)
    return code


def _begin(die_with_relay: Callable[[], None], ignored: signal.Signals | None) -> None:
    """Runs in the child. Launchers send signals to all of a rank's processes."""
    die_with_relay()
    if ignored is not None:
        signal.signal(ignored, signal.SIG_IGN)


def _in_packets() -> bool:
    """Make each write to standard error one packet (pipe(7), O_DIRECT), if possible."""
    if not stat.S_ISFIFO(os.fstat(2).st_mode):
        return False
    try:
        fcntl.fcntl(2, fcntl.F_SETFL, fcntl.fcntl(2, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError:
        return False
    return True


def report(text: str) -> None:
    """Write a line of hvd-launch, not of the program."""
    _write(2, f"hvd-launch: {text}\n".encode())


def _relay(
    child: subprocess.Popen[bytes], rank: int, packets: bool, look: Callable[[], object]
) -> None:
    assert child.stdout is not None
    assert child.stderr is not None
    prefix = f"[{rank}] ".encode()
    streams = {
        child.stdout.fileno(): (2, OUTPUT_MARK + prefix, Lines())
        if packets
        else (1, prefix, Lines()),
        child.stderr.fileno(): (2, prefix, Lines()),
    }
    poll = select.poll()
    for stream in streams:
        poll.register(stream, select.POLLIN)
    while streams:
        # Checked first, so that its last output is there to be read.
        ended = child.poll() is not None
        ready = poll.poll(_LOOK_MS)
        look()
        # A process that the program left behind may keep its streams open forever.
        if ended and not ready:
            return
        for stream, _ in ready:
            target, start, lines = streams[stream]
            piece = os.read(stream, 1 << 16)
            for line in lines.feed(piece) if piece else lines.end():
                _write(target, start + line + b"\n")
            if not piece:
                poll.unregister(stream)
                del streams[stream]


def _write(target: int, line: bytes) -> None:
    try:
        while line:
            line = line[os.write(target, line) :]
    except BrokenPipeError:
        # The launcher has ended, and this rank must end with it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), target)


def _ending(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _end_by_signal(number: int) -> None:
    """End as the program did, but without writing a core file."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    sys.stderr.flush()
    os.kill(os.getpid(), number)
