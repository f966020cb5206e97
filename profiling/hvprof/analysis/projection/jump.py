"""A jump between two measured sizes: another switch, another algorithm, a full node.

A line through it has the slope of neither side, so the jump is taken out of the fit and stays in
the forecast. Jumps beyond the measured sizes are why intervals are wide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# A jump costs more than this share of a rank's time, and this many times any other doubling.
_LEAST, _TIMES = 0.1, 3
_LEAST_SIZES = 5


@dataclass(frozen=True, slots=True)
class Jump:
    """A rank's work takes `share` longer beyond `below` ranks; `above` is the next measured size.

    `time_s` is that share in seconds for a unit of the work.
    """

    below: int
    above: int
    share: float
    time_s: float


def find_jump(
    sizes: Sequence[int], times_s: Sequence[float], doublings: NDArray[np.float64]
) -> Jump | None:
    """The one step between sizes that stands out, or None.

    Args:
        sizes: ascending.
        times_s: times of a rank for a unit of the work.
        doublings: where the sizes lie on the axis in which times grow evenly.
    """
    if len(sizes) < _LEAST_SIZES:
        return None
    lengths = np.diff(doublings)
    slopes = np.diff(times_s) / lengths
    place = int(np.argmax(slopes))
    others = np.delete(slopes, place)
    time_s = float((slopes[place] - np.median(others)) * lengths[place])
    share = time_s / times_s[place]
    if share <= _LEAST or slopes[place] <= _TIMES * others.max():
        return None
    return Jump(sizes[place], sizes[place + 1], share, time_s)
