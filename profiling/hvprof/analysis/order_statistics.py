"""How long the last of several ranks takes, if their times scatter."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

# Standard deviations: beyond it the density of the largest of a billion is nothing.
_EDGE, _POINTS = 10.0, 8001
_X = np.linspace(-_EDGE, _EDGE, _POINTS)
_ABOVE_ZERO = np.heaviside(_X, 0.5)


def expected_maximum(ranks: float, ahead: float = 0.0) -> float:
    """The mean of the largest of `ranks` normal values, in standard deviations.

    The integral over P(largest > x) = 1 - Phi(x)^n: sqrt(2 ln n) is twice that at 2 ranks, and a
    sixth too much at 512. 0 for one rank.

    Args:
        ranks: how many values.
        ahead: excess of the mean of one value over that of the others; the result is above
            that mean.
    """
    if ranks <= 1:
        return 0.0
    below = np.exp(_log_share_below(0.0) + (ranks - 1) * _log_share_below(ahead))
    return float(np.trapezoid(_ABOVE_ZERO - below, _X))


@lru_cache(maxsize=16)
def _log_share_below(ahead: float) -> NDArray[np.float64]:
    """The logarithm of Phi(x + ahead), the same for any number of ranks."""
    # Slow to import, and training needs none of it.
    from scipy.special import log_ndtr

    return log_ndtr(_X + ahead)


def expected_maximum_of(sample: NDArray[np.float64], ranks: float, ahead: float = 0.0) -> float:
    """The mean of the largest of `ranks` values drawn from a sample.

    It never passes the largest value of the sample: of more ranks than there are values it is
    a lower bound.

    Args:
        sample: (n,) values, ascending.
        ranks: how many draw.
        ahead: see `expected_maximum`.
    """
    x = np.union1d(sample, sample - ahead)
    below = _share_below(sample, x) * _share_below(sample, x + ahead) ** (ranks - 1)
    return float((x * np.diff(below, prepend=0.0)).sum())


def _share_below(sample: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.searchsorted(sample, x, side="right") / len(sample)
