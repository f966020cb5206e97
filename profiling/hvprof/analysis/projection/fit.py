"""A shape fitted to measured sizes, and what it says of others.

Times are fitted, not speeds: an error of speed grows with the ranks. Each point weighs by what is
known of its error, that of its printed digits and that between runs, so that a single rank's "11
images/s" does not tilt the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvprof.analysis.comparison.bootstrap import BETWEEN_RUNS
from hvprof.analysis.projection.points import Point
from hvprof.analysis.projection.shapes import Shape

# The prior of the error between runs counts as so many points: a few
# that lie on a line by chance must not give an interval of nothing.
_PRIOR_POINTS = 2.0


@dataclass(frozen=True, slots=True)
class Scale:
    """Subject of the times.

    Attributes:
        strong: the batch of all ranks is kept, not that of each.
        jump: ranks above which all takes longer by a constant factor of compute; None: nowhere.
    """

    strong: bool
    jump: int | None = None

    def time_s(self, point: Point) -> float:
        """Seconds for the work of a step, that of one rank in one step being 1 where it is kept."""
        return 1 / point.throughput if self.strong else point.ranks / point.throughput

    def throughput(self, ranks: float, time_s: float) -> float:
        """The inverse."""
        return 1 / time_s if self.strong else ranks / time_s


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds, and the variance of their logarithm."""

    time_s: float
    variance: float


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted shape.

    Attributes:
        shape: which.
        scale: of its times.
        factors: of its terms, none negative.
        covariance: of the factors, as if they might be negative: one that was found to be 0 is
            not known to be so.
        spread: by how much points scatter, over what was expected of them.
        freedom: degrees of freedom.
        squares: sum of the squared residuals, in expected variances.
    """

    shape: Shape
    scale: Scale
    factors: NDArray[np.float64]
    covariance: NDArray[np.float64]
    spread: float
    freedom: float
    squares: float

    def at(self, ranks: float) -> Forecast:
        """The time that a run on `ranks` ranks will show."""
        row = _terms(self.shape, self.scale, ranks)
        time_s = float(row @ self.factors)
        own = float(row @ self.covariance @ row) / time_s**2
        return Forecast(time_s, own + (self.spread * BETWEEN_RUNS) ** 2)


def fit(points: Sequence[Point], shape: Shape, scale: Scale) -> Fit:
    """The fit of the least squared relative error."""
    # Slow to import, and training needs none of it.
    from scipy.optimize import nnls

    times_s = np.array([scale.time_s(point) for point in points])
    errors = np.array([expected_error(point) for point in points])
    rows = np.array([_terms(shape, scale, point.ranks) for point in points])
    weighted = rows / (times_s * errors)[:, None]
    # Without points beyond a jump its column is empty, and nnls wants columns alike.
    size = np.abs(weighted).max(axis=0)
    size[size == 0] = 1.0
    found, norm = nnls(weighted / size, 1 / errors)
    count, terms = weighted.shape
    freedom = max(count - terms, 0) + _PRIOR_POINTS
    variance = (norm**2 + _PRIOR_POINTS) / freedom
    plain = np.linalg.pinv((weighted / size).T @ (weighted / size))
    return Fit(
        shape=shape,
        scale=scale,
        factors=found / size,
        covariance=variance * plain / np.outer(size, size),
        spread=float(np.sqrt(variance)),
        freedom=freedom,
        squares=float(norm**2),
    )


def expected_error(point: Point) -> float:
    """Standard deviation of a point, as a share: between runs, and of its digits."""
    return float(np.hypot(BETWEEN_RUNS, point.rounding))


def _terms(shape: Shape, scale: Scale, ranks: float) -> NDArray[np.float64]:
    compute = 1 / ranks if scale.strong else 1.0
    terms = [compute]
    if shape.growth is not None:
        terms.append(shape.growth(ranks))
    if scale.jump is not None:
        terms.append(compute * (ranks > scale.jump))
    return np.array(terms)
