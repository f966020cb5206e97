"""How the work of a rank slows down as ranks are added: a line in the doublings, and a prior.

Each rank's time for its share of the work is close to a straight line in the number of doublings:
the levels of a tree, the lateness of the last rank, and the stages of a network all grow like this.
With a constant global batch it is a line in the ranks (Amdahl). A few sizes say little about its
slope, so the slope of published trainings counts as additional measurements, which is ridge
regression towards a prior (Hoerl and Kennard, Technometrics 12, 1970).

The forecast starts halfway between the largest size and the line there: a single run is off by
some percent, and a line misses a slope that changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvprof.analysis.projection.jump import Jump, find_jump


@dataclass(frozen=True, slots=True)
class Prior:
    """Constants chosen from published tables (benchmarks.scaling_forecast chooses them again).

    Attributes:
        loss: cost of a doubling, as a share of the time at the largest measured size.
        weight: weight of the loss, as a sum of squared doublings.
        slack: the same for a doubling at the interval's lower end, beyond the forecast.
    """

    loss: float = 0.06
    weight: float = 4.0
    slack: float = 0.29


PUBLISHED = Prior()


@dataclass(frozen=True, slots=True)
class Growth:
    """A rank's time on more ranks than were measured.

    Attributes:
        largest: measured number of ranks; time_s: its time for one unit of the work.
        loss: cost of a doubling, as a share of it; never below 0.
        start: the forecast at `largest`, over the measured time there.
        strong: the batch of all ranks is kept: the time is linear in the ranks.
        jump: the jump that was taken out of the line; None if there was none.
    """

    largest: int
    time_s: float
    loss: float
    start: float
    strong: bool
    jump: Jump | None

    def at(self, ranks: float) -> float:
        """The time on more ranks; never shorter than at the largest size: no speed comes free."""
        doublings = float(_doublings(ranks, self.largest, self.strong))
        return self.time_s * max(1.0, self.start + self.loss * doublings)


def fit_growth(
    sizes: Sequence[int], times_s: Sequence[float], *, strong: bool, prior: Prior = PUBLISHED
) -> Growth:
    """Fit the times of three or more sizes, ascending."""
    ranks, times = np.array(sizes, float), np.array(times_s)
    jump = find_jump(sizes, times_s, _doublings(ranks, sizes[-1], strong))
    if jump:
        times = times + jump.time_s * (ranks <= jump.below)
    above = times / times[-1] - 1
    doublings = _doublings(ranks, sizes[-1], strong)
    # The tables of the prior keep the batch of a rank: they say nothing about a fixed global batch.
    weight = 0.0 if strong else prior.weight
    squares, mixed = doublings @ doublings + weight, doublings @ above + weight * prior.loss
    through = mixed / squares
    rows = np.array([[len(ranks), doublings.sum()], [doublings.sum(), squares]])
    level, free = np.linalg.solve(rows, [above.sum(), mixed])
    return Growth(
        largest=sizes[-1],
        time_s=float(times[-1]),
        loss=max(0.0, float(through + free) / 2),
        start=1 + float(level) / 2,
        strong=strong,
        jump=jump,
    )


def _doublings(
    ranks: float | NDArray[np.float64], largest: int, strong: bool
) -> NDArray[np.float64]:
    """Doublings of the largest size, or its ranks' growth where time is linear in ranks."""
    share = np.asarray(ranks) / largest
    return share - 1 if strong else np.log2(share)
