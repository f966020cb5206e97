"""Signs of life that a rank writes to its file, for readers that do not see its process."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from hvprof.format.layout import HOLDS_LOCK, NO_CARRIER
from hvprof.format.reader import text_of
from hvprof.live.standing import Process, Standing

# There are four a second; clocks of other hosts differ, and their file systems may be late.
_SILENT_S, SILENT_ON_ANOTHER_HOST_S = 1.5, 5.0
_STATES = {ord("S"): Process.SLEEPS, ord("D"): Process.ON_DISK}
# The kernel's struct flock.
_FLOCK = "hhqqi4x"


def state_by_signs(beat: np.void, path: Path, age_s: float, *, same_clock: bool) -> Process:
    """Return the state of a process by its latest sign of life; ELSEWHERE while it is unknown.

    Args:
        beat: BEAT, the sign.
        path: path of its file.
        age_s: its age.
        same_clock: whether both times of the age are from one clock.
    """
    if age_s < _SILENT_S:
        return _STATES.get(beat["state"].item(), Process.RUNS)
    if beat["flags"] & HOLDS_LOCK and not _is_locked(path):
        return Process.GONE
    silent = same_clock or age_s >= SILENT_ON_ANOTHER_HOST_S
    return Process.SILENT if silent else Process.ELSEWHERE


def _is_locked(path: Path) -> bool:
    """Whether another process holds a lock on a file; True if that cannot be found out."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer: bytes = fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def interface_without_carrier(beat: np.void) -> str:
    """Return a network interface that has no carrier, or ""."""
    return text_of(beat["interface"]) if beat["flags"] & NO_CARRIER else ""


def believed(standings: Iterable[Standing]) -> tuple[Standing, ...]:
    """Return the standings, with silent ranks marked.

    If all ranks that are not visible in another way are silent, the file system has delayed their
    signs.
    """
    found = tuple(standings)
    by_signs = {one.process for one in found if one.by_signs}
    if by_signs != {Process.SILENT}:
        return found
    return tuple(replace(one, process=Process.ELSEWHERE) if one.by_signs else one for one in found)
