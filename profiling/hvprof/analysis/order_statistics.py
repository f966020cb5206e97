"""How long the last of several ranks takes, if their times scatter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Standard deviations: beyond it the density of the largest of a billion is nothing.
_EDGE, _POINTS = 10.0, 8001


def expected_maximum(ranks: float, ahead: float = 0.0) -> float:
    """The mean of the largest of `ranks` normal values, in standard deviations.

    The integral over P(largest > x) = 1 - Phi(x)^n: sqrt(2 ln n) is twice that at 2 ranks, and a
    sixth too much at 512. 0 for one rank.

    Args:
        ranks: how many values.
        ahead: by how much one of them is larger than the others, as a rule; above that.
    """
    # Slow to import, and training needs none of it.
    from scipy.special import log_ndtr

    if ranks <= 1:
        return 0.0
    x = np.linspace(-_EDGE, _EDGE, _POINTS)
    below = np.exp(log_ndtr(x) + (ranks - 1) * log_ndtr(x + ahead))
    return float(np.trapezoid(np.heaviside(x, 0.5) - below, x))


def expected_maximum_of(sample: NDArray[np.float64], ranks: float, ahead: float = 0.0) -> float:
    """The mean of the largest of `ranks` values drawn from a sample.

    It never passes the largest value of the sample: of more ranks than there are values it is
    a lower bound.

    Args:
        sample: (n,) values, ascending.
        ranks: how many draw.
        ahead: as of `expected_maximum`.
    """
    x = np.union1d(sample, sample - ahead)
    below = _share_below(sample, x) * _share_below(sample, x + ahead) ** (ranks - 1)
    return float((x * np.diff(below, prepend=0.0)).sum())


def _share_below(sample: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.searchsorted(sample, x, side="right") / len(sample)
