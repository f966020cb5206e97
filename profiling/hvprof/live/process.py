"""The state of a rank's process, if it is on this machine."""

from __future__ import annotations

import contextlib
import os
from functools import cache
from pathlib import Path

from hvprof.live.standing import Process

_PROC = Path("/proc")
# The inaccuracy of the kernel's clock ticks and of the recorder's start.
_SLACK_S = 2.0
_STATES = {
    "T": Process.STOPPED,
    "t": Process.STOPPED,
    "D": Process.ON_DISK,
    "S": Process.SLEEPS,
}


def clock_name() -> str:
    """Return the name of this machine's monotonic clock in recordings; "" if unknown."""
    with contextlib.suppress(OSError):
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot:.36} {_link('time'):.26}"
    return ""


def sees_processes(space: str) -> bool:
    """Whether process ids of this namespace mean the same here."""
    return bool(space) and space == _link("pid")


def process_state(pid: int, start_unix_ns: int) -> tuple[Process, int]:
    """Return the state of a process of this machine, and the signal that ended it, or 0.

    Args:
        pid: its id.
        start_unix_ns: a time at which it ran, because a later process may have its id.
    """
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return (Process.RUNS if _exists(pid) else Process.GONE), 0
    fields = text[text.rindex(")") + 2 :].split()
    started_s = _boot_unix_s() + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    if started_s > start_unix_ns / 1e9 + _SLACK_S:
        return Process.GONE, 0
    if fields[0] in "ZX":
        return Process.GONE, int(fields[49]) & 0x7F
    return _STATES.get(fields[0], Process.RUNS), 0


def _exists(pid: int) -> bool:
    """Whether /proc hides processes of other users."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@cache
def _boot_unix_s() -> int:
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = (_PROC / "stat").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("btime")).split()[1])
    return 0


def _link(space: str) -> str:
    with contextlib.suppress(OSError):
        return str((_PROC / "self/ns" / space).readlink())
    return ""
