"""How busy the machine was with others' work while something was measured."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
# Columns of /proc/stat (proc(5)) in which a core computes, or another virtual machine does:
# user, nice, system, irq, softirq, steal. Guests are in user already.
_BUSY = (0, 1, 2, 5, 6, 7)


@dataclass(frozen=True)
class Moment:
    """Time used so far, in seconds.

    Attributes:
        clock_s: on the monotonic clock.
        all_s: of the cores that this process may use, by everyone.
        ours_s: by this process and its children, as far as these have ended.
    """

    clock_s: float
    all_s: float
    ours_s: float


def now() -> Moment:
    """To be asked when no child is running: a child counts as ours once it has ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    ours_s = sum(usage.ru_utime + usage.ru_stime for usage in used)
    stat = Path("/proc/stat").read_text()
    return Moment(time.monotonic(), busy_s(stat, os.sched_getaffinity(0)), ours_s)


def cores_of_others(begin: Moment, end: Moment) -> float:
    """How many cores others kept busy in between, on average."""
    others_s = (end.all_s - begin.all_s) - (end.ours_s - begin.ours_s)
    return max(0.0, others_s / (end.clock_s - begin.clock_s))


def busy_s(stat: str, cores: Collection[int]) -> float:
    """Seconds that some cores have computed since the machine started, by /proc/stat's text."""
    names = {f"cpu{core}" for core in cores}
    ticks = 0
    for line in stat.splitlines():
        name, *columns = line.split()
        if name in names:
            ticks += sum(int(columns[column]) for column in _BUSY)
    return ticks / _TICKS_A_SECOND
