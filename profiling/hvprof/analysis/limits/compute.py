"""Compute time by the batch of a rank, and the part that does not shrink with the batch.

Between timed batches it is assumed to be linear. The line through the smallest ones, extended to a
batch of 0, gives the fixed time. The fixed time of a convolution is small. For a fully connected
layer whose matrix product has become narrow, it is most of the time, so the layer scales no further
(Keuper and Pfreundt, "Distributed Training of Deep Neural Networks", MLHPC 2016, call it skinny).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hvprof.layers.table import LayerTable


@dataclass(frozen=True, slots=True)
class BatchTime:
    """Seconds by the batch of a rank.

    Attributes:
        batches: 0 and the timed batches, in ascending order.
        times_s: time of each batch.
    """

    batches: tuple[float, ...]
    times_s: tuple[float, ...]

    @property
    def fixed_s(self) -> float:
        """Return the time that does not shrink with the batch."""
        return self.times_s[0]

    def at(self, batch: float) -> float:
        """Return the seconds for a batch of a rank; beyond the largest, the last line continues."""
        last, last_s = self.batches[-1], self.times_s[-1]
        if batch > last:
            return last_s + max(0.0, last_s - self.fixed_s) * (batch - last) / last
        right = bisect_left(self.batches, batch, lo=1)
        before, after = self.batches[right - 1], self.batches[right]
        before_s, after_s = self.times_s[right - 1], self.times_s[right]
        return before_s + (after_s - before_s) * (batch - before) / (after - before)

    def times(self, factor: float) -> BatchTime:
        """Return this for a machine that takes `factor` times as long."""
        return BatchTime(self.batches, tuple(time_s * factor for time_s in self.times_s))


def batch_time(batches: Sequence[float], times_s: Sequence[float]) -> BatchTime:
    """Make the times of all batches from those that were timed.

    Below the smallest one they follow a line of least squared relative error, in which larger
    batches have less weight. With only one batch, all time is assumed to be proportional to it.

    Args:
        batches: batches of a rank in ascending order, above 0.
        times_s: seconds of each.
    """
    known = [(batch, time_s) for batch, time_s in zip(batches, times_s, strict=True) if time_s > 0]
    fixed_s = 0.0
    if len(known) > 1:
        batch, time_s = np.array(known, float).T
        _, found = np.polyfit(batch, time_s, 1, w=1 / (time_s * batch))
        fixed_s = min(max(0.0, float(found)), times_s[0])
    return BatchTime((0.0, *batches), (fixed_s, *times_s))


@dataclass(frozen=True, slots=True)
class Gradient:
    """Bytes of a layer's gradient, and the share of backward after which they are ready."""

    message_bytes: int
    ready: float


@dataclass(frozen=True, slots=True)
class Compute:
    """Compute of a step by the batch of a rank."""

    forward: BatchTime
    backward: BatchTime

    def time_s(self, batch: float) -> float:
        """Forward and backward."""
        return self.forward.at(batch) + self.backward.at(batch)

    def times(self, factor: float) -> Compute:
        """Return this for a machine that takes `factor` times as long."""
        return Compute(self.forward.times(factor), self.backward.times(factor))


def compute_of(table: LayerTable) -> Compute:
    """Return the sum of the layers; the fixed times of skinny ones stay in it."""
    return Compute(
        _sum([batch_time(table.batches, layer.forward_s) for layer in table.layers]),
        _sum([batch_time(table.batches, layer.backward_s) for layer in table.layers]),
    )


def gradients_of(table: LayerTable) -> tuple[Gradient, ...]:
    """Return the gradients in the order in which they become ready."""
    own = [layer for layer in table.layers if layer.gradient_bytes]
    backward_s = sum(layer.backward_s[-1] for layer in table.layers)
    # Autograd also works between the layers, so backward ends with the last gradient.
    whole_s = max([backward_s, *(layer.ready_s for layer in own)])
    found = [
        Gradient(layer.gradient_bytes, layer.ready_s / whole_s if whole_s else 1.0) for layer in own
    ]
    return tuple(sorted(found, key=lambda gradient: gradient.ready))


def _sum(parts: Sequence[BatchTime]) -> BatchTime:
    """Compute of layers that were timed at the same batches."""
    of_batches = zip(*(part.times_s for part in parts), strict=True)
    return BatchTime(parts[0].batches, tuple(map(sum, of_batches)))
