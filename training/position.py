"""Where a run is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Position:
    """Where a run is.

    Attributes:
        epoch: whole epochs, of a run that counts them; steps are then of this epoch.
        step: steps taken.
        samples: used so far by all ranks, which is the position in the order of samples.
    """

    epoch: int = 0
    step: int = 0
    samples: int = 0
