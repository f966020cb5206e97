"""The choice of held-out samples, which evaluate the result."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_ext.errors import UsageError
from hvd_ext.units import counted

Indices = NDArray[np.int64]


def hold_out(groups: NDArray[Any], least: int) -> tuple[Indices, Indices]:
    """Samples to learn from, and samples held out: the last groups of samples, each of them whole.

    Args:
        groups: for each sample the number of its group, (samples,).
        least: smallest number of samples to hold out.

    Raises:
        UsageError: none is left to learn from.
    """
    names, from_end, counts = np.unique(groups[::-1], return_index=True, return_counts=True)
    last_first = np.argsort(from_end)
    # As many as hold `least` samples together.
    needed = np.searchsorted(np.cumsum(counts[last_first]), least) + 1 if least else 0
    held_out = np.isin(groups, names[last_first[:needed]])
    if held_out.all():
        raise UsageError(
            f"--held-out {least} leaves none of {counted(len(groups), 'sample')}, as each of "
            f"{counted(len(names), 'group')} is held out whole: lower it"
        )
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)
