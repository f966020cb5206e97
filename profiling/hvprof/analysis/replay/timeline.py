"""Steps of a trace for a replay: each rank's exchanges, and where it was blocked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_ext.errors import UsageError
from hvd_ext.units import counted
from hvprof.analysis.waiting.collectives import COLLECTIVES
from hvprof.format.key import REGION, SOURCES, TRAFFIC, decode_all
from hvprof.format.trace import RankTrace, Trace

# This many steps may be left out, because not all ranks have all of their exchanges.
_LEFT_OUT = 0.1
_LEAST_STEPS = 3
_DATA, _HVD_EXT = TRAFFIC.index("data"), SOURCES.index("hvd_ext")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective as one rank saw it, in seconds on the common clock.

    Attributes:
        size: number of ranks, or of nodes, that took part.
        ready_s: when this rank's data was ready, as the optimizer reported; None if unknown.
    """

    operation: str
    algorithm: str
    message_bytes: int
    size: int
    begin_s: float
    end_s: float
    ready_s: float | None = None


@dataclass(frozen=True, slots=True)
class Blocked:
    """The training thread waited for exchanges, or made one itself."""

    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class RankStep:
    """A step of one rank: its exchanges and blocked times, in their order."""

    begin_s: float
    end_s: float
    exchanges: tuple[Exchange, ...]
    blocked: tuple[Blocked, ...]


# The same step on all ranks, in the order of ranks.
JobStep = tuple[RankStep, ...]


def steps_of(trace: Trace) -> list[JobStep]:
    """The steps of which the trace has all exchanges of all ranks, in their order.

    Raises:
        UsageError: too few, or ranks that exchanged differently.
    """
    nodes = len({rank.host for rank in trace.ranks})
    by_rank = [_rank_steps(rank, nodes) for rank in trace.ranks]
    numbers = sorted(set.intersection(*map(set, by_rank)))
    if len(numbers) < _LEAST_STEPS:
        raise UsageError(
            f"the trace has {counted(len(numbers), 'whole step')} of all ranks, a replay needs "
            f"{_LEAST_STEPS}: mark steps with hvprof.step(), and record with a larger --trace"
        )
    steps = [tuple(one[number] for one in by_rank) for number in numbers]
    alike = [step for step in steps if _alike(step)]
    if len(steps) - len(alike) > _LEFT_OUT * len(steps):
        raise UsageError(
            f"ranks exchanged differently in {len(steps) - len(alike)} of {len(steps)} steps: "
            "a replay needs the same exchanges on all ranks"
        )
    return alike


def _alike(step: JobStep) -> bool:
    kinds = [[(one.operation, one.message_bytes) for one in rank.exchanges] for rank in step]
    return all(kind == kinds[0] for kind in kinds)


def _rank_steps(trace: RankTrace, nodes: int) -> dict[int, RankStep]:
    """By the numbers of the steps."""
    events, keys = trace.events, decode_all(trace.events["key"])
    names, communicators = trace.tables.names, trace.tables.communicators
    is_region = keys["traffic"] == REGION
    is_step = is_region & (np.array(names) == "step")[keys["operation"]]
    if not is_step.any():
        return {}
    own = keys["source"] == _HVD_EXT
    collective = np.array([name in COLLECTIVES for name in names])[keys["operation"]]
    sizes = np.array([one.size for one in communicators])[keys["communicator"]]
    exchanged = (keys["traffic"] == _DATA) & collective & (sizes > 1)
    waits = is_region & (np.array(names) == "communication")[keys["algorithm"]]
    thread = events["thread"][is_step][-1]
    called = exchanged & ~own & (events["thread"] == thread)
    begin_s, end_s = events["begin_ns"] / 1e9, events["end_ns"] / 1e9
    # Calls that ended before the oldest remaining one may have been overwritten.
    since_s = end_s.min()
    queued_us = events["queued_us"].astype(float)
    ready_s = np.where(queued_us > 0, begin_s - (queued_us - 1) / 1e6, np.nan)

    def exchange(index: int) -> Exchange:
        return Exchange(
            names[keys["operation"][index]],
            names[keys["algorithm"][index]],
            int(events["bytes"][index]),
            # The network part of a hierarchical exchange is between nodes.
            nodes if names[keys["algorithm"][index]] == "hierarchical" else int(sizes[index]),
            float(begin_s[index]),
            float(max(end_s[index], begin_s[index])),
            None if np.isnan(ready_s[index]) else float(ready_s[index]),
        )

    order = np.argsort(begin_s, kind="stable")
    exchanges = order[exchanged[order]]
    blocked = order[(waits | called)[order]]
    found = {}
    for index in np.flatnonzero(is_step):
        first_s, last_s = begin_s[index], end_s[index]
        if first_s < since_s:
            continue
        found[int(events["sequence"][index])] = RankStep(
            float(first_s),
            float(last_s),
            tuple(map(exchange, _within(exchanges, begin_s, first_s, last_s))),
            _outermost(_within(blocked, begin_s, first_s, last_s), begin_s, end_s),
        )
    return found


def _within(
    order: NDArray[np.intp], begin_s: NDArray[np.float64], first_s: float, last_s: float
) -> NDArray[np.intp]:
    """Return the exchanges of `order`, which is sorted by their start, that begin in a step."""
    low, high = np.searchsorted(begin_s[order], [first_s, last_s])
    return order[low:high]


def _outermost(
    order: NDArray[np.intp], begin_s: NDArray[np.float64], end_s: NDArray[np.float64]
) -> tuple[Blocked, ...]:
    found: list[Blocked] = []
    for index in order:
        if not found or end_s[index] > found[-1].end_s:
            begin = max(begin_s[index], found[-1].end_s) if found else begin_s[index]
            found.append(Blocked(float(begin), float(end_s[index])))
    return tuple(found)
