"""How sure is a gain? Pure."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

_CONFIDENCE = 0.95
_RESAMPLES = 2000


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

    def __str__(self) -> str:
        return f"{self.estimate:.3f} ({self.low:.3f} to {self.high:.3f})"


def gain(before: Sequence[float], after: Sequence[float]) -> Interval:
    """How many times as fast `after` is as `before`, from pairs of times.

    The geometric mean of the pairs' ratios, and a bootstrap over the pairs, widened because
    one of few values is too narrow (Hesterberg, The American Statistician 69, 2015, section
    3.2). One pair proves nothing.

    Args:
        before: times of one side, any unit.
        after: those of the other, each measured next to its partner.
    """
    return from_logs([math.log(b / a) for b, a in zip(before, after, strict=True)])


def from_logs(logs: Sequence[float]) -> Interval:
    """The interval of exp(mean) from the pairs' logarithms; the same each time."""
    count = len(logs)
    mean = statistics.fmean(logs)
    if count < 2:
        return Interval(0.0, math.exp(mean), math.inf)
    source = random.Random(0)
    widened = _widening(count)
    means = sorted(
        mean + widened * (statistics.fmean(source.choices(logs, k=count)) - mean)
        for _ in range(_RESAMPLES)
    )
    cut = round(_RESAMPLES * (1 - _CONFIDENCE) / 2)
    return Interval(math.exp(means[cut]), math.exp(mean), math.exp(means[-1 - cut]))


def _widening(count: int) -> float:
    """What a bootstrap of so many values lacks: sqrt(n / (n - 1)), and t over the normal's."""
    quantile = (1 + _CONFIDENCE) / 2
    student = stats.t.ppf(quantile, count - 1) / stats.norm.ppf(quantile)
    return float(math.sqrt(count / (count - 1)) * student)
