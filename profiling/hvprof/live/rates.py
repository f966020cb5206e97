"""Rates of a running job between two readings, and the split of its time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean, median
from typing import Any

from hvd_ext.arithmetic.metrics import algbw_gb_s
from hvprof.format.connections import flows_between
from hvprof.format.counters import Count, Counters
from hvprof.live.snapshot import RankState, Snapshot
from hvprof.machine import Flow, Machine
from hvprof.model import Step

# Ranks whose shares differ by less than this count as equally fast.
_EVEN = 0.02
_SUMMED = tuple(one.name for one in fields(Step) if one.name not in ("index", "start_s"))


@dataclass(frozen=True, slots=True)
class RankRate:
    """A rank between two readings.

    Attributes:
        interval_s: time between them.
        steps: steps that have ended since its start.
        steps_s: steps a second now; None if it has marked none. If a step takes longer than the
            interval, the largest possible value.
        trend: `steps_s` over that of all steps before the reading, less 1; None if unknown.
        step: the mean of the steps that ended in between, and how many (`index`); None if none.
        mpi_s, outside_s: parts of the interval in MPI's calls (all threads, without control
            traffic) and outside of them.
        call_s: how long it has been in a call now; 0 for none.
        since_step_s: time since its last step ended; 0 if it has marked none.
        outside: share of its time in which it does not wait for others: outside of exposed
            communication in the steps that ended, or of MPI where a rank ended no step.
        machine: its machine's counters in between; None if unknown.
    """

    rank: int
    host: str
    interval_s: float
    steps: int
    steps_s: float | None
    trend: float | None
    step: Step | None
    mpi_s: float
    outside_s: float
    call_s: float
    since_step_s: float
    outside: float
    machine: Machine | None = None

    @property
    def queued_s(self) -> float:
        """Return how long its thread waited for a core in steps that ended; 0 if unknown."""
        return self.step.index * self.step.all_queued_s if self.step else 0.0


@dataclass(frozen=True, slots=True)
class OperationRate:
    """An operation between two readings, as a mean over the ranks.

    Attributes:
        operation, algorithm: see `model.Cell`; only data traffic.
        calls_s, bytes_s: calls that ended and their payload, a second.
        share: share of the time in its calls that ended.
        algbw_gb_s: payload over time in the calls, in decimal GB/s; None where the time is not
            that of the exchange (non-blocking calls) or nothing is moved.
    """

    operation: str
    algorithm: str
    calls_s: float
    bytes_s: float
    share: float
    algbw_gb_s: float | None


@dataclass(frozen=True, slots=True)
class Rates:
    """A job between two readings.

    Attributes:
        ranks: ranks that were in both, in order.
        operations: operations, the longest first.
        step: mean of the ranks' steps that ended in between; None if there were none.
        slowest: the rank that is longest outside of MPI; None if ranks are equally fast.
        flows: traffic between hosts.
    """

    ranks: tuple[RankRate, ...]
    operations: tuple[OperationRate, ...]
    step: Step | None
    slowest: int | None
    flows: tuple[Flow, ...] = ()


def rates(before: Snapshot, after: Snapshot) -> Rates:
    """Compute the rates of the ranks that are in both of two readings."""
    pairs = {
        rank: (before.ranks[rank], state)
        for rank, state in after.ranks.items()
        if rank in before.ranks
        and before.ranks[rank].counters.start_unix_ns == state.counters.start_unix_ns
        and before.ranks[rank].counters.at_ns < state.counters.at_ns
    }
    steps = {rank: _step(*pair) for rank, pair in pairs.items()}
    by_steps = bool(steps) and None not in steps.values()
    found = tuple(
        _rank(rank, after.standings[rank].host, *pairs[rank], steps[rank], by_steps=by_steps)
        for rank in sorted(pairs)
    )
    ended = [step for step in steps.values() if step]
    return Rates(
        ranks=found,
        operations=_operations(pairs),
        step=_mean(ended) if ended else None,
        slowest=_slowest(found),
        flows=_flows(flows_between(before.standings), flows_between(after.standings)),
    )


def _rank(
    rank: int,
    host: str,
    before: RankState,
    after: RankState,
    step: Step | None,
    *,
    by_steps: bool,
) -> RankRate:
    interval_s = (after.counters.at_ns - before.counters.at_ns) / 1e9
    # Several threads may be in MPI at once, and a call that ends during a reading may be missing.
    mpi_s = min(max(after.mpi_s - before.mpi_s, 0.0), interval_s)
    earlier, total = before.counters.steps, after.counters.steps
    mean_s = earlier.time_s / earlier.index if earlier and earlier.index else None
    if total is None:
        steps_s = None
    elif step:
        steps_s = 1 / step.time_s if step.time_s else None
    else:
        steps_s = 1 / max(after.since_step_s, mean_s or 0.0, 1e-9)
    exposed = step.exposed_s / step.time_s if by_steps and step and step.time_s else None
    return RankRate(
        rank=rank,
        host=host,
        interval_s=interval_s,
        steps=total.index if total else 0,
        steps_s=steps_s,
        trend=steps_s * mean_s - 1 if steps_s and mean_s else None,
        step=step,
        mpi_s=mpi_s,
        outside_s=interval_s - mpi_s,
        call_s=after.call_s,
        since_step_s=after.since_step_s,
        outside=1 - (mpi_s / interval_s if exposed is None else exposed),
        machine=_machine(before.counters, after.counters),
    )


def _machine(before: Counters, after: Counters) -> Machine | None:
    if before.machine is None or after.machine is None:
        return None
    return after.machine.since(before.machine)


def _flows(before: Sequence[Flow], after: Sequence[Flow]) -> tuple[Flow, ...]:
    """Return the traffic between two readings, of connections that are in both."""
    earlier = {(one.rank, one.to): one for one in before}
    return tuple(
        replace(
            later,
            busy_s=max(later.busy_s - first.busy_s, 0.0),
            acked_bytes=max(later.acked_bytes - first.acked_bytes, 0),
            resent=max(later.resent - first.resent, 0),
        )
        for later in after
        if (first := earlier.get((later.rank, later.to)))
    )


def _step(before: RankState, after: RankState) -> Step | None:
    """Return the mean of the steps that ended between two readings."""
    first, last = before.counters.steps, after.counters.steps
    if last is None:
        return None
    count = last.index - (first.index if first else 0)
    if count <= 0:
        return None
    means: dict[str, Any] = {}
    for name in _SUMMED:
        earlier, later = getattr(first, name) if first else 0, getattr(last, name)
        means[name] = None if later is None else max(later - (earlier or 0), 0) / count
    return Step(index=count, start_s=0.0, **means)


def _mean(steps: Sequence[Step]) -> Step:
    means: dict[str, Any] = {}
    for name in _SUMMED:
        values = [getattr(step, name) for step in steps]
        means[name] = None if None in values else fmean(values)
    return Step(index=max(step.index for step in steps), start_s=0.0, **means)


def _operations(pairs: Mapping[int, tuple[RankState, RankState]]) -> tuple[OperationRate, ...]:
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for before, after in pairs.values():
        for sign, state in ((-1, before), (1, after)):
            for one in state.counters.counts:
                if one.traffic == "data":
                    _add(sums[one.operation, one.algorithm], one, sign)
    ranks_s = sum((b.counters.at_ns - a.counters.at_ns) / 1e9 for a, b in pairs.values())
    found = [
        OperationRate(
            operation=operation,
            algorithm=algorithm,
            calls_s=calls / ranks_s,
            bytes_s=message_bytes / ranks_s,
            share=time_s / ranks_s,
            algbw_gb_s=(
                algbw_gb_s(int(message_bytes), time_s)
                if message_bytes > 0 and time_s > 0 and not operation.startswith("i")
                else None
            ),
        )
        for (operation, algorithm), (calls, message_bytes, time_s) in sums.items()
        if calls > 0
    ]
    return tuple(sorted(found, key=lambda one: -one.share))


def _add(sums: list[float], one: Count, sign: int) -> None:
    sums[0] += sign * one.calls
    sums[1] += sign * one.message_bytes
    sums[2] += sign * one.time_s


def _slowest(ranks: Sequence[RankRate]) -> int | None:
    if len(ranks) < 2:
        return None
    first = max(ranks, key=lambda one: one.outside)
    even = first.outside - median(one.outside for one in ranks if one is not first) < _EVEN
    return None if even else first.rank
