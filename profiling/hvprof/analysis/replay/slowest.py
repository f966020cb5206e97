"""The slowest rank, and a step in which it computes as fast as the others.

The cost of a straggler, as Lin et al. replay it ("Understanding Stragglers in Large Model Training
Using What-if Analysis", OSDI 2025): the excess of its computation over that of the other ranks is
taken out, and all that depends on it moves. The differences between single steps stay.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_ext.errors import UsageError
from hvprof.analysis.replay.replay import Recorded
from hvprof.analysis.replay.timeline import Blocked, JobStep, RankStep


@dataclass(frozen=True, slots=True)
class Slowest:
    """The rank that computes longest: medians over the steps, in seconds.

    Attributes:
        rank: number of the rank.
        own_s: time of its step, without waiting and exchanges.
        others_s: the same for the other ranks, their median.
    """

    rank: int
    own_s: float
    others_s: float

    def __call__(self, recorded: Recorded) -> Recorded:
        """The step with this rank as fast as the others."""
        rank, step = self.rank, recorded.step[self.rank]
        saved = 1 - self.others_s / self.own_s if self.own_s else 0.0

        def moved(at_s: float) -> float:
            return at_s - saved * (at_s - step.begin_s - _blocked_s(step, at_s))

        ready = [
            one._replace(ready_s=_with(one.ready_s, rank, moved(one.ready_s[rank])))
            for one in recorded.moved
        ]
        faster = RankStep(
            step.begin_s,
            moved(step.end_s),
            tuple(
                dataclasses.replace(one, begin_s=moved(one.begin_s), end_s=moved(one.end_s))
                for one in step.exchanges
            ),
            tuple(Blocked(moved(one.begin_s), moved(one.end_s)) for one in step.blocked),
        )
        steps = (*recorded.step[:rank], faster, *recorded.step[rank + 1 :])
        return dataclasses.replace(recorded, step=steps, moved=tuple(ready))


def slowest_of(steps: Sequence[JobStep]) -> Slowest:
    """The slowest of two or more ranks.

    Raises:
        UsageError: there is one rank.
    """
    if len(steps[0]) < 2:
        raise UsageError(
            "1 rank has no slower one: --without-slowest needs a recording of 2 or more"
        )
    own_s = [
        statistics.median(
            step.end_s - step.begin_s - _blocked_s(step, step.end_s) for step in of_rank
        )
        for of_rank in zip(*steps, strict=True)
    ]
    rank = max(range(len(own_s)), key=own_s.__getitem__)
    others_s = statistics.median(own_s[:rank] + own_s[rank + 1 :])
    return Slowest(rank, own_s[rank], others_s)


def _blocked_s(step: RankStep, until_s: float) -> float:
    return sum(
        max(0.0, min(one.end_s, until_s) - max(one.begin_s, step.begin_s)) for one in step.blocked
    )


def _with(values: tuple[float, ...], place: int, value: float) -> tuple[float, ...]:
    return (*values[:place], value, *values[place + 1 :])
