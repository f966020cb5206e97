"""Compute time against the batch of a rank: what does not shrink with it.

A layer takes t0 + t1 b for a batch of b. A convolution's t0 is small; that of a fully connected
layer whose matrix product has become narrow is most of its time: it scales no further (Keuper and
Pfreundt, "Distributed Training of Deep Neural Networks", MLHPC 2016, call it skinny).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hvprof.analysis.layers import LayerTable


@dataclass(frozen=True, slots=True)
class AffineTime:
    """Seconds for a batch: `fixed_s` for any, and `sample_s` for each sample."""

    fixed_s: float
    sample_s: float

    def at(self, batch: float) -> float:
        """Seconds for a batch of a rank."""
        return self.fixed_s + self.sample_s * batch

    def times(self, factor: float) -> AffineTime:
        """The same on a machine that takes `factor` times as long."""
        return AffineTime(self.fixed_s * factor, self.sample_s * factor)


def fit_affine(batches: Sequence[float], times_s: Sequence[float]) -> AffineTime:
    """The affine time of the least squared relative error, neither part negative.

    Of one batch alone all of the time is taken to grow with it.
    """
    # Slow to import, and training needs none of it.
    from scipy.optimize import nnls

    known = [(batch, time_s) for batch, time_s in zip(batches, times_s, strict=True) if time_s > 0]
    if not known:
        return AffineTime(0.0, 0.0)
    if len(known) == 1:
        batch, time_s = known[0]
        return AffineTime(0.0, time_s / batch)
    table = np.array(known, float)
    terms = np.stack([np.ones(len(table)), table[:, 0]], axis=1) / table[:, 1:]
    # A column of 256ths beside one of ones: nnls works better on what is alike.
    scale = terms.max(axis=0)
    found, _ = nnls(terms / scale, np.ones(len(table)))
    return AffineTime(*(float(value) for value in found / scale))


@dataclass(frozen=True, slots=True)
class Gradient:
    """Bytes of a layer's gradient, and the share of backward after which they are ready."""

    message_bytes: int
    ready: float


@dataclass(frozen=True, slots=True)
class Compute:
    """Compute of a step by the batch of a rank."""

    forward: AffineTime
    backward: AffineTime

    def time_s(self, batch: float) -> float:
        """Forward and backward."""
        return self.forward.at(batch) + self.backward.at(batch)

    def times(self, factor: float) -> Compute:
        """The same on a machine that takes `factor` times as long."""
        return Compute(self.forward.times(factor), self.backward.times(factor))


def compute_of(table: LayerTable) -> Compute:
    """The sum of the layers' fits: the fixed times of skinny layers stay in it."""
    forward = [fit_affine(table.batches, layer.forward_s) for layer in table.layers]
    backward = [fit_affine(table.batches, layer.backward_s) for layer in table.layers]
    return Compute(_sum(forward), _sum(backward))


def gradients_of(table: LayerTable) -> tuple[Gradient, ...]:
    """The gradients in the order in which they become ready."""
    own = [layer for layer in table.layers if layer.gradient_bytes]
    backward_s = sum(layer.backward_s[-1] for layer in table.layers)
    # Between the layers autograd works too: the last gradient ends backward.
    whole_s = max([backward_s, *(layer.ready_s for layer in own)])
    found = [
        Gradient(layer.gradient_bytes, layer.ready_s / whole_s if whole_s else 1.0) for layer in own
    ]
    return tuple(sorted(found, key=lambda gradient: gradient.ready))


def _sum(parts: Sequence[AffineTime]) -> AffineTime:
    return AffineTime(sum(part.fixed_s for part in parts), sum(part.sample_s for part in parts))
