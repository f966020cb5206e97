"""Waiting for late ranks, and how it grows with them.

The last of p ranks is later than the mean by sigma E[max of p], if their times scatter by chance;
a rank that is slow in every step delays the others by the same time however many there are.
Therefore the means of the ranks are subtracted first, and so is the delay that all ranks share in a
step, because a common pause makes no rank later than another. Only the remaining scatter grows with
the number of ranks, and it counts only where it exceeds the delay of the slow rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from hvprof.analysis.order_statistics import expected_maximum, expected_maximum_of
from hvprof.model import Recording

_LEAST_STEPS = 8
# A rank is slow if it is later than equal ranks would be by chance, by more than this factor.
_SURE = 3.0
# Standard error of a median, over that of a mean, of normal values.
_MEDIAN = np.sqrt(np.pi / 2)


@dataclass(frozen=True, eq=False)
class Jitter:
    """How the times of ranks between exchanges differ.

    Attributes:
        slow_s: difference between the slowest rank and the mean, in every step.
        ahead_s: difference between it and the other ranks.
        residuals_s: (n,) the remaining differences, ascending; their mean is 0.
    """

    slow_s: float
    ahead_s: float
    residuals_s: NDArray[np.float64]

    @cached_property
    def sigma_s(self) -> float:
        """Standard deviation of the differences by chance."""
        return float(self.residuals_s.std()) if len(self.residuals_s) else 0.0

    def at_most(self, waiting_s: float, ranks: int) -> Jitter:
        """The same jitter, scaled down if it explains more waiting than there was."""
        explained_s = self.waiting_s(ranks)
        factor = min(1.0, waiting_s / explained_s) if explained_s else 1.0
        return Jitter(self.slow_s * factor, self.ahead_s * factor, self.residuals_s * factor)

    def waiting_s(self, ranks: float) -> float:
        """How long a rank waits for the last of `ranks`, in a step, as a mean.

        By the normal distribution, or by the recorded steps where their tail is heavier.
        """
        return self._computed_once(float(ranks))

    @cached_property
    def _computed_once(self) -> Callable[[float], float]:
        # All algorithms of the exchange, and all limits, ask for the same numbers of ranks.
        return cache(self._waiting_s)

    def _waiting_s(self, ranks: float) -> float:
        if not len(self.residuals_s) or ranks <= 1:
            return self.slow_s if ranks > 1 else 0.0
        if not self.sigma_s:
            return self.slow_s
        chance_s = max(
            self.sigma_s * expected_maximum(ranks, self.ahead_s / self.sigma_s),
            expected_maximum_of(self.residuals_s, ranks, self.ahead_s),
        )
        return self.slow_s + chance_s


NO_JITTER = Jitter(0.0, 0.0, np.empty(0))


def jitter_of(recording: Recording) -> Jitter:
    """The jitter of a recording's steps; none where there are too few of them."""
    tables = [
        np.array([step.time_s - step.exposed_s for step in rank.steps if step.time_s > 0])
        for rank in recording.ranks
    ]
    count = min(map(len, tables))
    if len(tables) < 2 or count < _LEAST_STEPS:
        return NO_JITTER
    busy_s = np.array([table[len(table) - count :] for table in tables])
    differ_s = busy_s - busy_s.mean(axis=0)
    # Medians: a checkpoint of rank 0 in one step does not make it a slow rank.
    of_rank = np.median(differ_s, axis=1)
    residuals = differ_s - of_rank[:, None]
    # Subtracting the mean of few ranks subtracts some of the scatter, too.
    residuals *= np.sqrt(len(tables) / (len(tables) - 1))
    residuals = np.sort((residuals - residuals.mean()).ravel())
    # Medians of few steps differ by chance too.
    chance_s = _MEDIAN * residuals.std() / np.sqrt(count) * expected_maximum(len(tables))
    slow_s = of_rank.max() - of_rank.mean()
    if slow_s < _SURE * chance_s:
        slow_s = 0.0
    others = len(tables) / (len(tables) - 1)
    return Jitter(float(slow_s), float(slow_s * others), residuals)
