"""Where a run is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Position:
    """The position of a run.

    Attributes:
        epoch: whole epochs, if the run counts them; steps are then those of this epoch.
        step: steps taken.
        samples: samples used so far by all ranks, which is the position in the order of samples.
    """

    epoch: int = 0
    step: int = 0
    samples: int = 0
