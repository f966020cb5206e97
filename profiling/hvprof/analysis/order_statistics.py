"""How long the last of several ranks takes, if their times scatter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

# Standard deviations: beyond it the density of the largest of a billion is nothing.
_EDGE, _POINTS = 10.0, 8001


def expected_maximum(ranks: float) -> float:
    """The mean of the largest of `ranks` normal values, in standard deviations.

    The integral of n x phi(x) Phi(x)^(n-1): sqrt(2 ln n) is twice that at 2 ranks, and a
    sixth too much at 512. 0 for one rank.
    """
    if ranks <= 1:
        return 0.0
    x = np.linspace(-_EDGE, _EDGE, _POINTS)
    log_density = np.log(ranks) - x**2 / 2 - np.log(2 * np.pi) / 2 + (ranks - 1) * log_ndtr(x)
    return float(np.trapezoid(x * np.exp(log_density), x))


def expected_maximum_of(sample: NDArray[np.float64], ranks: float) -> float:
    """The mean of the largest of `ranks` values drawn from a sample.

    It never passes the largest value of the sample: of more ranks than there are values it is
    a lower bound.

    Args:
        sample: (n,) values, ascending.
        ranks: how many draw.
    """
    edges = (np.arange(len(sample) + 1) / len(sample)) ** ranks
    return float((sample * np.diff(edges)).sum())
