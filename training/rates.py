"""Learning rates that follow the batch and the epoch."""

from __future__ import annotations

# Exponents of the batch: Goyal et al., 2017, for SGD; Krizhevsky, 2014.
SCALINGS = {"linear": 1.0, "sqrt": 0.5}


def scaled(rate: float, global_batch: int, meant_for: int | None, scaling: str) -> float:
    """Convert a rate for one batch to another batch; None: the rate is for any batch."""
    return rate * (global_batch / (meant_for or global_batch)) ** SCALINGS[scaling]


def warmed_up(rate: float, warmup_epochs: float, epoch: float) -> float:
    """A rate that grows from 0 within the first epochs; `epoch` may be a fraction."""
    return rate * min(1.0, epoch / warmup_epochs) if warmup_epochs else rate


def halved(rate: float, step: int, every: int) -> float:
    """A rate that is halved after a fixed number of steps (Lim et al., 2017)."""
    return rate * 0.5 ** (step // every)
