"""The learning rate, as a function of the epoch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

# Shares of a run at which the rate becomes a tenth: epochs 30, 60 and 80 of 90.
_EDGES = (30 / 90, 60 / 90, 80 / 90)


def steps(epoch: float, epochs: int, warmup: float) -> float:
    """A tenth from each edge on (Goyal et al., 2017, section 5.1)."""
    return float(0.1 ** sum(epoch / epochs >= edge for edge in _EDGES))


def cosine(epoch: float, epochs: int, warmup: float) -> float:
    """Half a cosine, from the end of the warm-up on (Loshchilov and Hutter, 2017)."""
    return (1 + math.cos(math.pi * (epoch - warmup) / (epochs - warmup))) / 2


# The factor of the full rate after the warm-up.
SCHEDULES: dict[str, Callable[[float, int, float], float]] = {"steps": steps, "cosine": cosine}


@dataclass(frozen=True)
class LearningRate:
    """The rate of a run.

    Attributes:
        first: rate at the beginning of the warm-up.
        full: rate at its end.
        epochs: epochs of the run.
        warmup: epochs in which the rate grows by the same amount at each step.
        schedule: one of SCHEDULES, for the epochs after that.
    """

    first: float
    full: float
    epochs: int
    warmup: float
    schedule: str

    def at(self, epoch: float) -> float:
        """Return the rate after a number of epochs, which may be a fraction."""
        if epoch < self.warmup:
            return self.first + (self.full - self.first) * epoch / self.warmup
        return self.full * SCHEDULES[self.schedule](epoch, self.epochs, self.warmup)

    def __str__(self) -> str:
        grows = f"{self.first:g}, growing to {self.full:g} in {self.warmup:g} epochs"
        return f"learning rate {grows if self.warmup else f'{self.full:g}'}, then {self.schedule}"
