"""Latency and bandwidth of a network, fitted to measured allreduces by least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hvd_ext.arithmetic.allreduce_work import Work
from hvd_ext.errors import UsageError


@dataclass(frozen=True, slots=True)
class Rates:
    """Time of a message, of a byte sent and of a byte combined.

    Attributes:
        latency_s: seconds for a message, whatever its length.
        byte_s: seconds for a byte sent.
        reduction_s: seconds for a byte combined.
    """

    latency_s: float
    byte_s: float
    reduction_s: float

    def time_s(self, work: Work) -> float:
        """Seconds for this work."""
        return (
            self.latency_s * work.messages
            + self.byte_s * work.sent_bytes
            + self.reduction_s * work.reduced_bytes
        )


def fit(
    works: Sequence[Work], times_s: Sequence[float], weights: Sequence[float] | None = None
) -> Rates:
    """Find the rates, none negative, of the least squared relative error.

    One algorithm at one number of ranks cannot separate sending from combining: its prediction for
    other sizes is valid, but its byte_s alone means nothing.

    Args:
        works: work of one or several allreduces each.
        times_s: seconds of each.
        weights: weights of the squared errors (default: all equal).

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
