"""Replays steps: the recorded computation with given times of the exchanges.

A rank's exchanges run one after the other, as in MG-WFBP (Shi, Chu and Li, INFOCOM 2019), and
each needs all of its ranks:

    arrival of a rank = max(end of the exchange before, ready) + what the rank then still took
    end of a rank     = last arrival of all ranks + transfer

The training thread leaves a wait when the last exchange that it waited for is over, and continues
its computation. Recorded gaps stay as they are. An unchanged replay is therefore exact if the
program behaves like this, and its error shows how far the program does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hvprof.analysis.replay.timeline import Blocked, Exchange, JobStep, RankStep

# Clocks are read one after the other: an exchange that ended up to this long after a wait was
# waited for.
_SLACK_S = 20e-6
# A thread that begins an exchange this soon after the last one may have been late for it.
_IDLE_S = 1e-3


class Moved(NamedTuple):
    """An exchange to be replayed, as each rank has it; times are those of the recording.

    Attributes:
        ready_s: when it could begin, by rank.
        late_s: how much later it began, although the previous exchange was over.
        transfer_s: its time after all ranks had come and the previous exchange was over.
        overlaps: whether it began while the previous exchange was under way; then only its transfer
            waits for that exchange.
    """

    ready_s: tuple[float, ...]
    late_s: tuple[float, ...]
    transfer_s: tuple[float, ...]
    overlaps: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A step with the parts of its exchanges, and whether it is known when they were ready."""

    step: JobStep
    exchanges: tuple[Exchange, ...]
    moved: tuple[Moved, ...]
    knows_ready: bool


def take_apart(step: JobStep, *, early: bool = False) -> Recorded:
    """Separate waiting, lateness and transfer of a step's exchanges.

    Args:
        step: a step of all ranks.
        early: if it is unknown when an exchange was ready, and the previous one was still under
            way, assume that both were ready at once; else that it was ready as late as possible.
    """
    ended_s = [rank.begin_s for rank in step]
    ready_s = [rank.begin_s for rank in step]
    moved, knows = [], True
    for exchanges in zip(*(rank.exchanges for rank in step), strict=True):
        bounds = [
            _ready_s(*of_rank) for of_rank in zip(step, exchanges, ended_s, ready_s, strict=True)
        ]
        knows &= all(earliest == latest for earliest, latest in bounds)
        ready_s = [earliest if early else latest for earliest, latest in bounds]
        overlaps = [one.begin_s < ended for one, ended in zip(exchanges, ended_s, strict=True)]
        late_s = [
            max(0.0, one.begin_s - (ready if over else max(ready, ended)))
            for one, ended, ready, over in zip(exchanges, ended_s, ready_s, overlaps, strict=True)
        ]
        arrived_s = max(one.begin_s for one in exchanges)
        transfer_s = [
            max(0.0, one.end_s - max(arrived_s, ended))
            for one, ended in zip(exchanges, ended_s, strict=True)
        ]
        ended_s = [max(one.end_s, e) for one, e in zip(exchanges, ended_s, strict=True)]
        moved.append(Moved(tuple(ready_s), tuple(late_s), tuple(transfer_s), tuple(overlaps)))
    return Recorded(step, step[0].exchanges, tuple(moved), knows)


def _ready_s(
    rank: RankStep, exchange: Exchange, ended_s: float, before_s: float
) -> tuple[float, float]:
    """When an exchange was ready: at the earliest, and at the latest."""
    if exchange.ready_s is not None:
        given_s = max(exchange.ready_s, rank.begin_s)
        return given_s, given_s
    # A thread that waits for an exchange has handed over all its data.
    waits = [b.begin_s for b in rank.blocked if b.begin_s <= exchange.begin_s <= b.end_s]
    latest_s = min([exchange.begin_s, *waits])
    # It may have been ready before, together with the last one, if that was still under way.
    waited = exchange.begin_s < ended_s + _IDLE_S and latest_s > before_s
    return (before_s if waited and not _called(rank, exchange) else latest_s), latest_s


def _called(rank: RankStep, exchange: Exchange) -> bool:
    """Whether the training thread made the exchange itself."""
    own = Blocked(exchange.begin_s, exchange.end_s)
    return own in rank.blocked


# The exchanges to replay, from those of a recorded step; and a step that ranks compute faster.
Change = Callable[[Recorded], Sequence[Moved]]
Pace = Callable[[Recorded], Recorded]


def unchanged(recorded: Recorded) -> Sequence[Moved]:
    """The exchanges as they were."""
    return recorded.moved


def replay(
    steps: Sequence[JobStep],
    change: Change,
    *,
    early: bool = False,
    pace: Pace | None = None,
) -> list[list[float]]:
    """Seconds of each step on each rank, [step][rank], with other exchanges.

    Args:
        steps: the steps in their order.
        change: says which exchanges there are instead of the recorded ones.
        early: see `take_apart`.
        pace: makes ranks compute faster; None: as fast as recorded.
    """
    later_s = [0.0] * len(steps[0])
    found = []
    for step in steps:
        recorded = take_apart(step, early=early)
        if pace is not None:
            recorded = pace(recorded)
        after_s = _replay_step(recorded, change(recorded), later_s)
        ends_s = [rank.end_s + after for rank, after in zip(recorded.step, after_s, strict=True)]
        found.append(
            [
                end_s - rank.begin_s - before
                for rank, end_s, before in zip(step, ends_s, later_s, strict=True)
            ]
        )
        later_s = [end_s - rank.end_s for rank, end_s in zip(step, ends_s, strict=True)]
    return found


def _replay_step(
    recorded: Recorded, exchanges: Sequence[Moved], later_s: Sequence[float]
) -> list[float]:
    """Return how much later than recorded each rank ends a step, given its delay at the start."""
    ranks = [_Rank(step, later) for step, later in zip(recorded.step, later_s, strict=True)]
    total = len(exchanges)
    for number, one in enumerate(exchanges):
        arrived_s = max(
            rank.arrival_s(ready, late, number / total, overlaps=over)
            for rank, ready, late, over in zip(
                ranks, one.ready_s, one.late_s, one.overlaps, strict=True
            )
        )
        for rank, transfer_s in zip(ranks, one.transfer_s, strict=True):
            rank.ended_s = max(arrived_s, rank.ended_s) + transfer_s
    return [rank.finish(exchanged=bool(exchanges)) for rank in ranks]


class _Rank:
    """A rank in the middle of a step."""

    def __init__(self, step: RankStep, later_s: float) -> None:
        self._later_s = later_s
        self.ended_s = step.begin_s + later_s
        count = len(step.exchanges)
        # Each wait, the share of the step's exchanges that is over when it ends, and the time after
        # these.
        self._waits = []
        for blocked in step.blocked:
            over = [one for one in step.exchanges if one.end_s <= blocked.end_s + _SLACK_S]
            last_s = max((one.end_s for one in over), default=blocked.begin_s)
            tail_s = max(0.0, blocked.end_s - max(blocked.begin_s, last_s))
            self._waits.append((blocked, len(over) / count if count else 0.0, tail_s))

    def arrival_s(self, ready_s: float, late_s: float, done: float, *, overlaps: bool) -> float:
        """When this rank arrives for an exchange; `done` is the share of those before it."""
        while self._waits and self._waits[0][1] <= done and self._waits[0][0].end_s <= ready_s:
            self._leave_wait()
        there_s = ready_s + self._later_s
        return (there_s if overlaps else max(there_s, self.ended_s)) + late_s

    def finish(self, *, exchanged: bool) -> float:
        """How much later it is at the end; without an exchange it waits for nothing."""
        if not exchanged:
            waited_s = sum(blocked.end_s - blocked.begin_s for blocked, _, _ in self._waits)
            return self._later_s - waited_s
        while self._waits:
            self._leave_wait()
        return self._later_s

    def _leave_wait(self) -> None:
        blocked, over, tail_s = self._waits.pop(0)
        begun_s = blocked.begin_s + self._later_s
        left_s = max(begun_s, self.ended_s) if over else begun_s
        self._later_s = left_s + tail_s - blocked.end_s
