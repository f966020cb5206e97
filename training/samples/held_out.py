"""Which samples are kept from training, to evaluate the result."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_ext.errors import UsageError
from hvd_ext.units import counted

Indices = NDArray[np.int64]


def hold_out(universes: NDArray[Any], least: int) -> tuple[Indices, Indices]:
    """Samples to learn from, and samples held out: the last universes, each of them whole.

    Args:
        universes: of each sample the number of its universe, (samples,).
        least: how many samples to hold out at least.

    Raises:
        UsageError: none is left to learn from.
    """
    names, from_end, counts = np.unique(universes[::-1], return_index=True, return_counts=True)
    last_first = np.argsort(from_end)
    # As many as hold `least` samples together.
    needed = np.searchsorted(np.cumsum(counts[last_first]), least) + 1 if least else 0
    held_out = np.isin(universes, names[last_first[:needed]])
    if held_out.all():
        raise UsageError(
            f"--held-out {least} leaves none of {counted(len(universes), 'sample')}, as each of "
            f"{counted(len(names), 'universe')} is held out whole: lower it"
        )
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)
