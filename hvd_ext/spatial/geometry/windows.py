"""Which inputs an output needs: the one rule from which every exchange follows.

The owner of outputs [o0, o1) of a window with kernel k, stride s, padding p and dilation
d needs the inputs [o0 s - p, (o1 - 1) s - p + d (k - 1)], ends included. Any part that lies
outside [0, L) is the layer's own padding, at the borders of the whole sample and nowhere
else; the rest is met with the shards, however many of them it spans. Half the kernel,
the usual rule for a halo, is wrong as soon as a stride meets an uneven cut.

An input range is written [begin, end), may stick out of [0, L), and is empty for no outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hvd_ext.spatial.geometry.partition import Interval, cuts, intersect


class Window(Protocol):
    """How the outputs of an operation depend on its inputs along one dim."""

    def input_range(self, outputs: Interval) -> Interval:
        """The inputs that `outputs` need, unclipped."""

    def inside(self, shard: Interval, extent: int) -> Interval:
        """The outputs that need nothing but `shard` of an input of `extent`."""


@dataclass(frozen=True, slots=True)
class Sliding:
    """The window of a convolution or a pooling.

    Attributes:
        kernel: number of taps.
        stride: step between outputs, in inputs.
        padding: cells before the first input; what comes after follows from the extent.
        dilation: step between taps, in inputs.
    """

    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def span(self) -> int:
        """Inputs from the first to the last tap, both included."""
        return self.dilation * (self.kernel - 1) + 1

    def input_range(self, outputs: Interval) -> Interval:
        begin = outputs[0] * self.stride - self.padding
        if outputs[0] >= outputs[1]:
            return (begin, begin)
        return (begin, (outputs[1] - 1) * self.stride - self.padding + self.span)

    def inside(self, shard: Interval, extent: int) -> Interval:
        """The outputs that need nothing but `shard`, and no padding."""
        begin = -(-(shard[0] + self.padding) // self.stride)
        return (begin, (shard[1] - self.span + self.padding) // self.stride + 1)

    def padding_of(self, shard: Interval, outputs: Interval) -> int | None:
        """Zeros on both sides of `shard` with which the window makes just `outputs` of it."""
        zeros = shard[0] - self.input_range(outputs)[0]
        length = shard[1] - shard[0] + 2 * zeros
        if zeros < 0 or length < self.span:
            return None
        made = (length - self.span) // self.stride + 1
        return zeros if made == outputs[1] - outputs[0] else None


@dataclass(frozen=True, slots=True)
class Transposed:
    """The window of a transposed convolution: Sliding with inputs and outputs swapped.

    Input i adds to the outputs i s - p + d t of the taps t, so output o depends on
    the inputs from ceil((o + p - d (k - 1)) / s) to floor((o + p) / s).
    """

    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def span(self) -> int:
        """Outputs from the first to the last tap, both included."""
        return self.dilation * (self.kernel - 1) + 1

    def input_range(self, outputs: Interval) -> Interval:
        """The inputs that may add to `outputs`, unclipped."""
        begin = -(-(outputs[0] + self.padding - self.span + 1) // self.stride)
        if outputs[0] >= outputs[1]:
            return (begin, begin)
        return (begin, max(begin, (outputs[1] - 1 + self.padding) // self.stride + 1))

    def inside(self, shard: Interval, extent: int) -> Interval:
        """The outputs that depend on `shard` alone; beyond the sample there is nothing."""
        # The first output that input shard[0] - 1 does not reach, and the first of shard[1].
        begin = (shard[0] - 1) * self.stride - self.padding + self.span
        end = shard[1] * self.stride - self.padding
        # The extent of the outputs is the caller's to clip to.
        return (0 if shard[0] == 0 else begin, end if shard[1] < extent else end + self.span)


@dataclass(frozen=True, slots=True)
class Unsplit:
    """The window along a dim that is not split: everything, padding left to torch.

    Attributes:
        extent: of the input.
        padding: zeros on both sides, with which torch is called.
    """

    extent: int
    padding: int = 0

    def input_range(self, outputs: Interval) -> Interval:
        return (0, self.extent)

    def inside(self, shard: Interval, extent: int) -> Interval:
        """All outputs, however many."""
        return (0, 1 << 62)

    def padding_of(self, shard: Interval, outputs: Interval) -> int:
        """The padding that torch is called with in any case."""
        return self.padding


@dataclass(frozen=True, slots=True)
class Explicit:
    """A window given output by output, as resampling and adaptive pooling have it.

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
    """For each part of the outputs, the inputs of [0, `extent`) that it needs."""
    bounds = cuts(outputs, parts)
    return tuple(
        _clip(window.input_range((bounds[at], bounds[at + 1])), extent)
        if bounds[at] < bounds[at + 1]
        else (0, 0)
        for at in range(parts)
    )


def interior(window: Window, owned: Interval, shard: Interval, extent: int) -> Interval:
    """The outputs of `owned` that can be computed before any halo arrives."""
    if shard[0] >= shard[1]:
        return (owned[0], owned[0])
    return intersect(owned, window.inside(shard, extent))


def transfers(needed: Sequence[Interval], extent: int) -> tuple[tuple[Interval, ...], ...]:
    """Inputs of part `to` that lie in shard `of`, as [to][of]; the adjoint uses the transpose."""
    bounds = cuts(extent, len(needed))
    return tuple(
        tuple(intersect(need, (bounds[of], bounds[of + 1])) for of in range(len(needed)))
        for need in needed
    )


def _clip(needed: Interval, extent: int) -> Interval:
    begin = min(max(needed[0], 0), extent)
    return (begin, max(begin, min(needed[1], extent)))
