"""`hvd-launch tune fusion`: the settings of Horovod's fusion to try, and those to keep.

A step's time is modelled as

    t0 + t1 / f + t2 f + t3 c + t4 / c        f: fusion threshold in MiB, c: cycle time in ms

t1 is the latency of as many messages as the threshold makes of the gradients; t2 the part of
the last message that no computation hides; t3 the wait for the next cycle; t4 the background
thread's own work each cycle. All are at least 0. The model only proposes. A setting is kept only if
it was measured to be faster than Horovod's defaults, interleaved with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from hvd_ext.arithmetic.statistics import Interval, gain
from hvd_launch.settings import Setting

_SOURCE = "Horovod 0.28.1, horovod/common/operations.cc and docs/autotune.rst"
THRESHOLDS_MIB = (1, 4, 16, 32, 64, 128)
CYCLES_MS = (1, 2, 5, 10, 25)


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """A fusion threshold in MiB and a cycle time in ms; both 0: Horovod's autotune."""

    threshold_mib: int
    cycle_ms: int

    @property
    def name(self) -> str:
        if self == AUTOTUNE:
            return "HOROVOD_AUTOTUNE"
        text = f"{self.threshold_mib} MiB, {self.cycle_ms} ms"
        return f"{text} (Horovod's defaults)" if self == DEFAULT else text

    def settings(self) -> tuple[Setting, ...]:
        tuned = self == AUTOTUNE
        autotune = Setting(
            "HOROVOD_AUTOTUNE", str(int(tuned)), "0", "Horovod's own search while training", _SOURCE
        )
        if tuned:
            return (autotune,)
        return (
            Setting(
                "HOROVOD_FUSION_THRESHOLD",
                str(self.threshold_mib * 2**20),
                str(128 * 2**20),
                f"at most {self.threshold_mib} MiB of gradients in one message",
                _SOURCE,
            ),
            Setting(
                "HOROVOD_CYCLE_TIME",
                str(self.cycle_ms),
                "1",
                f"gradients are collected for {self.cycle_ms} ms",
                _SOURCE,
            ),
            autotune,
        )


DEFAULT = Point(128, 1)
AUTOTUNE = Point(0, 0)
# Runs that suffice to separate the model's five terms.
DESIGN = (DEFAULT, Point(16, 1), Point(128, 5), Point(16, 5), Point(4, 2), Point(64, 25))


def propose(rates: Mapping[Point, float]) -> Point | None:
    """Settings to try next: the design first, then the model's shortest step.

    Returns:
        None once all has been tried.
    """
    for point in DESIGN:
        if point not in rates:
            return point
    left = [
        point
        for point in itertools.starmap(Point, itertools.product(THRESHOLDS_MIB, CYCLES_MS))
        if point not in rates
    ]
    model = fit(rates)
    return min(left, key=lambda point: predict(model, point), default=None)


def fit(rates: Mapping[Point, float]) -> tuple[float, ...]:
    """Fit the model's five terms, each at least 0, by least squares; times are 1 / rate."""
    points = list(rates)
    terms = np.array([_terms(point) for point in points])
    times = np.array([1 / rates[point] for point in points])
    # Relative errors, because a rate has an error of some percent.
    best, _ = nnls(terms / times[:, None], np.ones(len(points)))
    return tuple(map(float, best))


def predict(model: Sequence[float], point: Point) -> float:
    """Return the time of a step by the model, in the units of 1 / rate."""
    return float(np.dot(model, _terms(point)))


def finalists(rates: Mapping[Point, float], count: int = 2) -> list[Point]:
    """Return the fastest of the tried settings, without the defaults."""
    others = [point for point in rates if point not in (DEFAULT, AUTOTUNE)]
    return sorted(others, key=lambda point: -rates[point])[:count]


def gains(rates: Mapping[Point, Sequence[float]]) -> dict[Point, Interval]:
    """Return the speedup of each setting over Horovod's defaults, by rounds."""
    default = rates[DEFAULT]
    return {
        point: gain([1 / rate for rate in default], [1 / rate for rate in found])
        for point, found in rates.items()
        if point != DEFAULT
    }


def keep(found: Mapping[Point, Interval]) -> Point:
    """Return the fastest setting that beat the defaults significantly, or the defaults."""
    better = {point: interval.estimate for point, interval in found.items() if interval.gained}
    return max(better, key=better.__getitem__, default=DEFAULT)


def _terms(point: Point) -> tuple[float, ...]:
    f, c = float(point.threshold_mib), float(point.cycle_ms)
    return (1.0, 1 / f, f, c, 1 / c)
