"""The inputs that an output needs: the one rule that determines every exchange.

The owner of outputs [o0, o1) of a window with kernel k, stride s, padding p and dilation
d needs the inputs [o0 s - p, (o1 - 1) s - p + d (k - 1)], ends included. Any part outside of [0, L)
is the layer's own padding, which is only at the borders of the whole sample; the rest is divided
among the shards, however many it spans. Half the kernel, the usual rule for a halo, is wrong if a
stride meets an uneven cut.

An input range is written [begin, end), may extend beyond [0, L), and is empty if there are no
outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hvd_ext.spatial.geometry.partition import Interval, cuts, intersect


class Window(Protocol):
    """The dependence of an operation's outputs on its inputs along one dim."""

    def input_range(self, outputs: Interval) -> Interval:
        """Return the inputs that `outputs` need, unclipped."""

    def inside(self, shard: Interval, extent: int) -> Interval:
        """Return the outputs that need only `shard` of an input of `extent`."""


@dataclass(frozen=True, slots=True)
class Sliding:
    """The window of a convolution or a pooling.

    Attributes:
        kernel: number of taps.
        stride: step between outputs, in inputs.
        padding: cells before the first input; the padding after the last one follows from the
            extent.
        dilation: step between taps, in inputs.
    """

    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def span(self) -> int:
        """Return the number of inputs from the first to the last tap, both included."""
        return self.dilation * (self.kernel - 1) + 1

    def input_range(self, outputs: Interval) -> Interval:
        begin = outputs[0] * self.stride - self.padding
        if outputs[0] >= outputs[1]:
            return (begin, begin)
        return (begin, (outputs[1] - 1) * self.stride - self.padding + self.span)

    def inside(self, shard: Interval, extent: int) -> Interval:
        """Return the outputs that need only `shard`, and no padding."""
        begin = -(-(shard[0] + self.padding) // self.stride)
        return (begin, (shard[1] - self.span + self.padding) // self.stride + 1)

    def padding_of(self, shard: Interval, outputs: Interval) -> int | None:
        """Return the zeros around `shard` with which the window computes just `outputs`."""
        zeros = shard[0] - self.input_range(outputs)[0]
        length = shard[1] - shard[0] + 2 * zeros
        if zeros < 0 or length < self.span:
            return None
        made = (length - self.span) // self.stride + 1
        return zeros if made == outputs[1] - outputs[0] else None


@dataclass(frozen=True, slots=True)
class Transposed:
    """The window of a transposed convolution: Sliding with inputs and outputs swapped.

    Through tap t, input i adds to output i s - p + d t, so output o depends on
    the inputs from ceil((o + p - d (k - 1)) / s) to floor((o + p) / s).
    """

    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def span(self) -> int:
        """Return the number of outputs from the first to the last tap, both included."""
        return self.dilation * (self.kernel - 1) + 1

    def input_range(self, outputs: Interval) -> Interval:
        """Return the inputs that may add to `outputs`, unclipped."""
        begin = -(-(outputs[0] + self.padding - self.span + 1) // self.stride)
        if outputs[0] >= outputs[1]:
            return (begin, begin)
        return (begin, max(begin, (outputs[1] - 1 + self.padding) // self.stride + 1))

    def inside(self, shard: Interval, extent: int) -> Interval:
        """Return the outputs that depend only on `shard`; there is nothing beyond the sample."""
        # The first output that input shard[0] - 1 does not reach, and the first one of shard[1].
        begin = (shard[0] - 1) * self.stride - self.padding + self.span
        end = shard[1] * self.stride - self.padding
        # The caller clips to the extent of the outputs.
        return (0 if shard[0] == 0 else begin, end if shard[1] < extent else end + self.span)


@dataclass(frozen=True, slots=True)
class Unsplit:
    """The window along a dim that is not split: the whole dim, which torch pads.

    Attributes:
        extent: extent of the input.
        padding: zeros on both sides, as an argument for torch.
    """

    extent: int
    padding: int = 0

    def input_range(self, outputs: Interval) -> Interval:
        return (0, self.extent)

    def inside(self, shard: Interval, extent: int) -> Interval:
        """Return all outputs."""
        return (0, 1 << 62)

    def padding_of(self, shard: Interval, outputs: Interval) -> int:
        """Return the padding with which torch is called in any case."""
        return self.padding


@dataclass(frozen=True, slots=True)
class Explicit:
    """A window given for each output, as in resampling and adaptive pooling.

    Attributes:
        begins: first input of each output; never decreasing.
        ends: end of the inputs of each output; never decreasing.
    """

    begins: tuple[int, ...]
    ends: tuple[int, ...]

    def input_range(self, outputs: Interval) -> Interval:
        if outputs[0] >= outputs[1]:
            return (0, 0)
        return (self.begins[outputs[0]], self.ends[outputs[1] - 1])

    def inside(self, shard: Interval, extent: int) -> Interval:
        fit = [
            output
            for output, inputs in enumerate(zip(self.begins, self.ends, strict=True))
            if shard[0] <= inputs[0] and inputs[1] <= shard[1]
        ]
        return (fit[0], fit[-1] + 1) if fit else (0, 0)


def needs(window: Window, outputs: int, extent: int, parts: int) -> tuple[Interval, ...]:
    """Return, for each part of the outputs, the inputs of [0, `extent`) that it needs."""
    bounds = cuts(outputs, parts)
    return tuple(
        _clip(window.input_range((bounds[at], bounds[at + 1])), extent)
        if bounds[at] < bounds[at + 1]
        else (0, 0)
        for at in range(parts)
    )


def interior(window: Window, owned: Interval, shard: Interval, extent: int) -> Interval:
    """Return the outputs of `owned` that can be computed before any halo arrives."""
    if shard[0] >= shard[1]:
        return (owned[0], owned[0])
    return intersect(owned, window.inside(shard, extent))


def transfers(needed: Sequence[Interval], extent: int) -> tuple[tuple[Interval, ...], ...]:
    """Return inputs of part `to` in shard `of`, as [to][of]; the adjoint uses the transpose."""
    bounds = cuts(extent, len(needed))
    return tuple(
        tuple(intersect(need, (bounds[of], bounds[of + 1])) for of in range(len(needed)))
        for need in needed
    )


def _clip(needed: Interval, extent: int) -> Interval:
    begin = min(max(needed[0], 0), extent)
    return (begin, max(begin, min(needed[1], extent)))
