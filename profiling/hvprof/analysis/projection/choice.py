"""Which shapes to trust: those that foretell the larger of the measured sizes from the smaller.

Rolling origin (Tashman, International Journal of Forecasting 16, 2000): fit the first sizes, score
on all that follow, add one size, and again. Leaving one out instead rewards interpolation. Shapes
that foretell about equally well are averaged, and how they differ is part of the interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hvprof.analysis.projection.fit import Fit, Scale, expected_error, fit
from hvprof.analysis.projection.points import Point, sizes_of
from hvprof.analysis.projection.shapes import Shape

CONFIDENCE = 0.9
# Sizes that a first fit needs, where there are as many: two terms go through any two.
_FIRST_SIZES = 3
# Expected errors by which two shapes may differ and still be as good.
_ABOUT_EQUAL = 0.5
# A wider interval says no less: nothing is known.
_WIDEST = 1000.0


@dataclass(frozen=True, slots=True)
class Scored:
    """A shape, and its error on sizes it had not seen, in expected errors (root mean square)."""

    shape: Shape
    error: float


@dataclass(frozen=True, slots=True)
class TimeForecast:
    """Seconds, and by which factor the interval goes up and down from them."""

    time_s: float
    factor: float


def score(points: Sequence[Point], shape: Shape, scale: Scale) -> float:
    """The error of a shape on the larger sizes, from fits of the smaller ones."""
    sizes = sizes_of(points)
    first = min(_FIRST_SIZES, len(sizes) - 1)
    # A jump cannot be foretold from the sizes before it.
    first = max(first, sum(size <= (scale.jump or 0) for size in sizes) + 1)
    first = min(first, len(sizes) - 1)
    errors = []
    for cut in sizes[first - 1 : -1]:
        fitted = fit([point for point in points if point.ranks <= cut], shape, scale)
        for point in points:
            if point.ranks > cut:
                ratio = fitted.at(point.ranks).time_s / scale.time_s(point)
                errors.append(np.log(ratio) / expected_error(point))
    return float(np.sqrt(np.mean(np.square(errors))))


def choose(scored: Sequence[Scored]) -> list[Shape]:
    """The shapes whose error is about that of the best; noise alone gives 1."""
    least = max(1.0, min(one.error for one in scored))
    return [one.shape for one in scored if one.error <= least + _ABOUT_EQUAL]


def forecast(fits: Sequence[Fit], ranks: float) -> TimeForecast:
    """Combined prediction of the fits of several shapes, within CONFIDENCE."""
    # scipy.stats is slow to import, and only projections need it.
    from scipy.stats import t as student

    each = [one.at(ranks) for one in fits]
    logs = np.log([one.time_s for one in each])
    variance = np.mean([one.variance for one in each]) + logs.var()
    freedom = min(one.freedom for one in fits)
    width = float(student.ppf((1 + CONFIDENCE) / 2, freedom) * np.sqrt(variance))
    return TimeForecast(float(np.exp(logs.mean())), math.exp(min(width, math.log(_WIDEST))))
