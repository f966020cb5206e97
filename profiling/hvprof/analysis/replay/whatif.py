"""Time of a step with another exchange, or without its slowest rank."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_ext.arithmetic.allreduce_work import FORMULAS
from hvd_ext.errors import UsageError
from hvprof.analysis.contention import step_parts
from hvprof.analysis.replay.change import Changed, WhatIf
from hvprof.analysis.replay.network import Network, network_of, shortest
from hvprof.analysis.replay.replay import replay, take_apart, unchanged
from hvprof.analysis.replay.slowest import Slowest, slowest_of
from hvprof.analysis.replay.timeline import JobStep, steps_of
from hvprof.analysis.summary import quantile_s
from hvprof.format.trace import load_trace
from hvprof.model import Recording

MOST_ERROR = 0.05
# Messages shorter by this factor than the shortest exchange show latency alone.
_FEW = 16


@dataclass(frozen=True, slots=True)
class Replayed:
    """An answer, in seconds of a step: medians over the steps, as means over the ranks.

    Attributes:
        steps: how many were replayed.
        recorded_s: their recorded time.
        error: relative error of the unchanged replay.
        network: fitted times of the exchanges.
        low_s, high_s: their predicted time. The two differ if it is unknown when gradients were
            ready, or which part of an exchange's time is latency.
        knows_ready: whether the optimizer reported when gradients were ready.
        slowed_s: CPU time that communication takes from computing in a step; 0 if the kernel does
            not count it. It is not part of low_s and high_s if no exchange is left.
        slowest: the rank that was made as fast as the others; None if none was.
    """

    steps: int
    recorded_s: float
    error: float
    network: Network
    low_s: float
    high_s: float
    knows_ready: bool
    slowed_s: float
    slowest: Slowest | None = None

    @property
    def speedup(self) -> tuple[float, float]:
        """Times as fast: least and most."""
        return self.recorded_s / self.high_s, self.recorded_s / self.low_s


def what_if(recording: Recording, asked: WhatIf) -> Replayed:
    """Replay a recording's trace unchanged, and with the requested change.

    Raises:
        UsageError: there is no trace, it cannot be replayed, or the unchanged replay is farther
            than MOST_ERROR from what was recorded.
    """
    trace = load_trace(recording)
    if trace is None:
        raise UsageError(
            f"{recording.directory} has no trace: record one with hvprof record --trace 100000"
        )
    if len(trace.ranks) < recording.size:
        raise UsageError(
            f"{recording.directory} has the traces of {len(trace.ranks)} of {recording.size} "
            "ranks: a replay needs the traces of all"
        )
    steps = steps_of(trace)
    found = answer(steps, asked, _most_latency_s(recording, shortest(steps)))
    parts = step_parts(recording)
    if asked.exchange or parts is None or not parts.slowed_s:
        return found
    return _without_slowing(found, parts.slowed_s)


def answer(steps: Sequence[JobStep], asked: WhatIf, most_latency_s: float = math.inf) -> Replayed:
    """Replay steps unchanged, and with the requested change.

    Args:
        steps: steps of the trace.
        asked: the exchange to predict.
        most_latency_s: see `network_of`.

    Raises:
        UsageError: the unchanged replay is farther than MOST_ERROR from what was recorded, or
            the exchange cannot be replayed.
    """
    if asked.algorithm is not None:
        _check_algorithm(steps, asked.algorithm)
    recorded = [[rank.end_s - rank.begin_s for rank in step] for step in steps]
    error = _error(replay(steps, unchanged), recorded)
    if error > MOST_ERROR:
        raise UsageError(
            f"the unchanged replay is {100 * error:.1f} % off, more than {100 * MOST_ERROR:g} %: "
            "its steps wait for events that the trace does not contain"
        )
    network = network_of(steps, most_latency_s)
    slowest = slowest_of(steps) if asked.without_slowest else None
    times_s = [
        _step_s(replay(steps, Changed(asked, line), early=early, pace=slowest))
        for line in network.lines
        for early in (False, True)
    ]
    return Replayed(
        steps=len(steps),
        recorded_s=_step_s(recorded),
        error=error,
        network=network,
        low_s=min(times_s),
        high_s=max(times_s),
        knows_ready=all(take_apart(step).knows_ready for step in steps),
        slowed_s=0.0,
        slowest=slowest,
    )


def _most_latency_s(recording: Recording, shortest_bytes: int) -> float:
    """Time of an allreduce of few bytes: no exchange has more latency."""
    by_kind: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for rank in recording.ranks:
        for cell in rank.cells:
            median_s = quantile_s([cell], 0.5)
            if (
                cell.operation == "allreduce"
                and cell.size == recording.size
                and cell.high_bytes * _FEW <= shortest_bytes
                and median_s is not None
            ):
                kind = cell.algorithm, cell.traffic, cell.communicator, cell.high_bytes
                by_kind[kind].append(median_s)
    # By the rank that waits: the last rank finds the messages of the others.
    return min(map(max, by_kind.values()), default=math.inf)


def _check_algorithm(steps: Sequence[JobStep], algorithm: str) -> None:
    if algorithm not in FORMULAS:
        raise UsageError(f"algorithm {algorithm!r} has no formula: use {', '.join(FORMULAS)}")
    if any(one.algorithm == "shared_memory" for step in steps for one in step[0].exchanges):
        raise UsageError(
            "gradients were exchanged in shared memory, which sends no messages: --algorithm "
            "needs a recording of several nodes, or of another exchange"
        )


def _without_slowing(found: Replayed, slowed_s: float) -> Replayed:
    slowed_s = min(slowed_s, 0.9 * found.low_s)
    return dataclasses.replace(
        found, low_s=found.low_s - slowed_s, high_s=found.high_s - slowed_s, slowed_s=slowed_s
    )


def _error(replayed: list[list[float]], recorded: list[list[float]]) -> float:
    """Mean distance of the steps, as a share of their mean."""
    pairs = [
        (new, old)
        for step, before in zip(replayed, recorded, strict=True)
        for new, old in zip(step, before, strict=True)
    ]
    return sum(abs(new - old) for new, old in pairs) / sum(old for _, old in pairs)


def _step_s(steps: list[list[float]]) -> float:
    """Median of a rank's steps, as a mean over the ranks."""
    return statistics.fmean(statistics.median(of_rank) for of_rank in zip(*steps, strict=True))
