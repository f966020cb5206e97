"""Is it faster? A decision from pairs of times. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_CONFIDENCE = 0.95
_RESAMPLES = 2000
# An interval that extends to this multiple of the estimate is not printed in digits.
_TELLS_NOTHING = 10


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio of speeds (2 = twice as fast) and its 95 % confidence interval."""

    low: float
    estimate: float
    high: float

    @property
    def gained(self) -> bool:
        """Faster, beyond doubt."""
        return self.low > 1

    @property
    def uncertain(self) -> bool:
        """Whether there were too few rounds to bound the ratio."""
        return self.high > _TELLS_NOTHING * self.estimate

    def __str__(self) -> str:
        if self.uncertain:
            return f"{self.estimate:.3f} (uncertain: too few rounds)"
        return f"{self.estimate:.3f} ({self.low:.3f} to {self.high:.3f})"


def gain(before: Sequence[float], after: Sequence[float]) -> Interval:
    """How many times as fast `after` is as `before`, from pairs of times.

    The geometric mean of the pairs' ratios, and a bootstrap over the pairs, widened because a
    bootstrap of few values is too narrow (Hesterberg, The American Statistician 69, 2015, section
    3.2). One pair proves nothing.

    Args:
        before: times of one side, in any unit.
        after: times of the other side, each measured next to its partner.
    """
    return from_logs([math.log(b / a) for b, a in zip(before, after, strict=True)])


def from_logs(logs: Sequence[float]) -> Interval:
    """Return the interval of exp(mean) from the pairs' logarithms; the same in every call."""
    values = np.asarray(logs, float)
    count, mean = len(values), float(values.mean())
    if count < 2:
        return Interval(0.0, math.exp(mean), math.inf)
    chosen = np.random.default_rng(0).integers(0, count, (_RESAMPLES, count))
    means = mean + _widening(count) * (values[chosen].mean(axis=1) - mean)
    low, high = np.quantile(means, ((1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2))
    return Interval(math.exp(low), math.exp(mean), math.exp(high))


def lasting(gains: Sequence[Mapping[str, Interval]]) -> list[dict[str, float]]:
    """Find what gained at each of ascending sizes and was also faster at a neighboring one.

    A win at one size alone is luck; where only one size was measured, it counts.

    Args:
        gains: estimates at each size, by name.

    Returns:
        The remaining estimates, by name.
    """
    left = []
    for index, here in enumerate(gains):
        beside = (*gains[max(0, index - 1) : index], *gains[index + 1 : index + 2])
        left.append(
            {
                name: found.estimate
                for name, found in here.items()
                if found.gained
                and (not beside or any(n[name].estimate > 1 for n in beside if name in n))
            }
        )
    return left


def _widening(count: int) -> float:
    """Correction of a bootstrap of `count` values: sqrt(n / (n - 1)), and t over the normal's."""
    # Slow to import, and only comparisons need it.
    from scipy import stats

    quantile = (1 + _CONFIDENCE) / 2
    student = stats.t.ppf(quantile, count - 1) / stats.norm.ppf(quantile)
    return float(math.sqrt(count / (count - 1)) * student)
