"""Predicted cost of an allreduce: latency-bandwidth formulas, and their fit to measurements.

A message takes a + n b, a reduction n g. Each algorithm is a count of messages, of bytes
sent one after the other, and of bytes reduced (Thakur, Rabenseifner and Gropp, IJHPCA 19,
2005; Sanders, Speck and Traeff, Parallel Computing 35, 2009), so that its time is linear
in a, b and g, and these follow from measurements by least squares. The formulas stand with
the algorithms.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hvd_ext.allreduce.algorithms import ALGORITHMS, NATIVE, cost
from hvd_ext.allreduce.work import Work
from hvd_ext.errors import UsageError

FORMULAS = tuple(name for name in ALGORITHMS if name != NATIVE)


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of a machine: a, b and g.

    Attributes:
        latency_s: for a message, whatever its length.
        byte_s: for a byte sent.
        reduction_s: for a byte combined.
    """

    latency_s: float
    byte_s: float
    reduction_s: float

    def time_s(self, work: Work) -> float:
        return (
            self.latency_s * work.messages
            + self.byte_s * work.sent_bytes
            + self.reduction_s * work.reduced_bytes
        )


@dataclass(frozen=True, slots=True)
class Measurement:
    """The time of one allreduce of `message_bytes` per rank over `size` ranks."""

    algorithm: str
    size: int
    message_bytes: int
    time_s: float


@dataclass(frozen=True, slots=True)
class FitError:
    """How far predictions are from measurements that the fit did not see: |t' - t| / t."""

    median: float
    worst: float


def work(algorithm: str, size: int, message_bytes: float) -> Work:
    """The work of `algorithm`.

    Raises:
        UsageError: it has no formula, as the library's own.
    """
    if algorithm not in FORMULAS:
        raise UsageError(f"algorithm {algorithm!r} has no formula: use {', '.join(FORMULAS)}")
    if size < 1 or message_bytes < 0:
        raise UsageError(f"{size} ranks and {message_bytes} bytes: give at least 1 and 0")
    return cost(algorithm)(size, message_bytes)


def fit(measurements: Sequence[Measurement]) -> Rates:
    """Find the rates, none negative, of the least squared relative error.

    One algorithm at one number of ranks cannot separate sending from combining: its
    predictions for other sizes hold, its byte_s alone means nothing.

    Raises:
        UsageError: no measurements, or one that took no time.
    """
    return fit_works(
        [work(m.algorithm, m.size, m.message_bytes) for m in measurements],
        [m.time_s for m in measurements],
    )


def fit_works(
    works: Sequence[Work], times_s: Sequence[float], weights: Sequence[float] | None = None
) -> Rates:
    """The same from what was done, such as by several allreduces at once, and its times.

    Args:
        works: what was done.
        times_s: seconds of each.
        weights: of the squared errors; None: all alike.

    Raises:
        UsageError: no measurements, or one that took no time.
    """
    # Slow to import, and training needs none of it.
    from scipy.optimize import nnls

    if not times_s or any(not time_s > 0 for time_s in times_s):
        raise UsageError("a fit needs measurements, all of them of more than 0 s")
    terms = np.array([(w.messages, w.sent_bytes, w.reduced_bytes) for w in works], float)
    roots = np.ones(len(works)) if weights is None else np.sqrt(weights)
    terms *= (roots / np.array(times_s))[:, None]
    # Columns differ by ten orders of magnitude.
    scale = np.abs(terms).max(axis=0)
    scale[scale == 0] = 1.0
    found, _ = nnls(terms / scale, roots)
    return Rates(*(float(rate) for rate in found / scale))


def leave_one_out(measurements: Sequence[Measurement]) -> FitError:
    """Predict each measurement from a fit of all others.

    Raises:
        UsageError: fewer than two measurements.
    """
    if len(measurements) < 2:
        raise UsageError(f"{len(measurements)} measurements: leaving one out needs two or more")
    errors = []
    for index, left_out in enumerate(measurements):
        rates = fit([*measurements[:index], *measurements[index + 1 :]])
        predicted = rates.time_s(work(left_out.algorithm, left_out.size, left_out.message_bytes))
        errors.append(abs(predicted - left_out.time_s) / left_out.time_s)
    return FitError(statistics.median(errors), max(errors))
