"""The reason why a rank is slower than the others, by the parts of its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple, Protocol

from hvd_ext.units import format_seconds
from hvprof.analysis.conditions import Condition, OnCore, slow_cores
from hvprof.machine import Machine
from hvprof.model import Recording, Step

# A part of a step is a reason if it explains this share of the time by which the rank is slower.
_LEAST_SHARE = 0.3
_MANY_FAULTS = 1000.0
# The operating system's own work takes a core for less than this share of a step.
_LEAST_QUEUED = 0.1
# Ranks that wait for cores by this factor less are not slowed in the same way.
_ALL_WAIT = 0.5
# A rank sleeps or waits if it has a core for less than this share of the time it spends by itself.
_BUSY_SHARE = 0.5


class Paced(OnCore, Protocol):
    """A rank's steps, of a whole run or between two readings."""

    @property
    def step(self) -> Step | None:
        """Return the mean of its steps; None if none has ended."""

    @property
    def outside(self) -> float:
        """Return the share of its time in which it does not wait for other ranks."""


@dataclass(frozen=True, slots=True)
class Pace:
    """`Paced`, of a recording."""

    rank: int
    host: str
    step: Step
    outside: float
    machine: Machine | None = None


def paces(recording: Recording) -> list[Pace]:
    """Return the pace of each rank that marks steps."""
    return [
        Pace(one.rank, one.host, step.mean(), 1 - step.exposed_s / step.time_s, one.machine)
        for one in recording.ranks
        if (step := one.all_steps) and step.index and step.time_s
    ]


def _queued(step: Step) -> float:
    """Return the least time in which it waits for a core outside of communication.

    While it polls for other ranks, it may also wait for a core, which the kernel does not separate.
    """
    queued_s, blocked_s = step.queued_s or 0.0, step.queued_blocked_s
    sleeps_s = max(step.time_s - step.cpu_s - queued_s - blocked_s, 0.0)
    polls_s = max(step.exposed_s - blocked_s - sleeps_s, 0.0)
    return min(max(queued_s - polls_s, 0.0), step.compute_s + step.other_s)


def _input(step: Step) -> float:
    return step.io_s


def _own(step: Step) -> float:
    return max(step.compute_s + step.other_s - _queued(step), 0.0)


class _Part(NamedTuple):
    """A part of a step in words, and what to check if it is long."""

    of: Callable[[Step], float]
    does: str
    look: str


_PARTS = (
    _Part(_queued, "waits for a core", "other processes or threads share its cores"),
    _Part(_input, "waits for input", "look at its files and its share of the data"),
    _Part(_own, "computes", "it has more work, or a slower core"),
)


# The parts that conditions of a machine lengthen.
_SLOWED = {"quota": _queued, "clock": _own}


class Reason(NamedTuple):
    """The reason why a rank is slow, with the figures, and what to check."""

    does: str
    look: str

    def __str__(self) -> str:
        return f"{self.does}: {self.look}"


def reason(
    rank: int | None, ranks: Sequence[Paced], known: Sequence[Condition] = ()
) -> Reason | None:
    """Return why a rank is slower; None if its steps do not show it.

    Args:
        rank: its number.
        ranks: all ranks of the job.
        known: conditions of their machines.
    """
    first = next((one for one in ranks if one.rank == rank), None)
    others = [one.step for one in ranks if one is not first and one.step]
    if first is None or first.step is None or not others:
        return None
    own = first.step

    def more_s(of: Callable[[Step], float]) -> float:
        return of(own) - fmean(of(one) for one in others)

    longest = max(_PARTS, key=lambda part: more_s(part.of))
    slower_s = more_s(_outside_s)
    if slower_s <= 0 or more_s(longest.of) < _LEAST_SHARE * slower_s:
        return None
    if longest.of is _queued and more_s(_queued) < _LEAST_QUEUED * own.time_s:
        return None
    does, look = longest.does, longest.look
    if longest.of is _own and 0 < own.cpu_s < _BUSY_SHARE * _own(own):
        does, look = "sleeps or waits outside of communication", "py-spy dump shows where"
    faults, of_others = own.page_faults, fmean(one.page_faults for one in others)
    if longest.of is _own and faults > max(_MANY_FAULTS, 10 * of_others):
        look = f"{faults:,.0f} page faults a step, the others {of_others:,.0f}: reuse its memory"
    theirs_s = fmean(longest.of(one) for one in others)
    if longest.of is _queued and theirs_s > _ALL_WAIT * _queued(own):
        look = "other processes or threads share the cores of all ranks"
    slow = slow_cores(ranks, [first.rank], longest.of(own) / theirs_s) if theirs_s else None
    if slow and longest.of is _own and does == longest.does:
        look = slow.what
    for condition in known:
        if longest.of is _SLOWED.get(condition.kind) and rank in condition.ranks:
            look = condition.what
    than = f", the others {format_seconds(theirs_s)}" if theirs_s else ", the others do not"
    figures = f"it {does} {format_seconds(longest.of(own))} a step{than}"
    return Reason(f"{_where(first, ranks)}{figures}", look)


def _outside_s(step: Step) -> float:
    return step.time_s - step.exposed_s


def _where(first: Paced, ranks: Sequence[Paced]) -> str:
    """Whether the whole host is slow: its ranks are slower than all others."""
    here = [one.outside for one in ranks if one.host == first.host]
    there = [one.outside for one in ranks if one.host != first.host]
    if len(here) > 1 and there and min(here) > max(there):
        return f"all ranks of {first.host} are slow; "
    return ""
