"""Samples that are computed as they are sliced, and random fields that they are made of.

A field is a sum of plane waves in a periodic box. A wave is a product of one factor per
dimension, so a block costs one matrix product, and all blocks are of the same field.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Block = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Procedure:
    """Samples that slice like an array, and are computed on demand.

    Attributes:
        shape: (samples, channels, *space).
        compute: takes a sample and a block of space, (begin, end) per dimension, and returns its
            values, (channels, *lengths of the block).
    """

    shape: tuple[int, ...]
    compute: Callable[[int, Block], Any]
    dtype = np.dtype(np.float32)

    def __getitem__(self, index: tuple[slice, ...]) -> Array:
        (first, last), (low, high), *block = block_of(index, self.shape)
        lengths = (end - begin for begin, end in block)
        values = np.empty((last - first, high - low, *lengths), self.dtype)
        for sample in range(first, last):
            values[sample - first] = self.compute(sample, block)[low:high]
        return values


@dataclass(frozen=True)
class Waves:
    """Plane waves: sum over k of amplitude_k cos(2 pi vector_k . x / lengths + phase_k).

    Attributes:
        lengths: cells of the box along each dimension.
        vectors: whole periods along each dimension, (waves, dimensions).
        amplitudes: (waves,).
        phases: (waves,), in radians.
    """

    lengths: tuple[int, ...]
    vectors: Array
    amplitudes: Array
    phases: Array

    def at(self, block: Block) -> Array:
        """Values at the cells of a block, given as (begin, end) per dimension; float64."""
        parts = [
            np.exp(2j * math.pi / length * np.outer(np.arange(begin, end), vector))
            for (begin, end), length, vector in zip(
                block, self.lengths, self.vectors.T, strict=True
            )
        ]
        rows = parts[0] * (self.amplitudes * np.exp(1j * self.phases))
        for part in parts[1:-1]:
            rows = (rows[:, None, :] * part[None, :, :]).reshape(-1, len(self.amplitudes))
        last = parts[-1].T
        values = rows.real @ last.real - rows.imag @ last.imag
        return values.reshape([end - begin for begin, end in block])

    def at_points(self, points: Array) -> Array:
        """Values anywhere, (points,), at places (dimensions, points), in cells."""
        turns = (self.vectors / self.lengths) @ points
        values: Array = self.amplitudes @ np.cos(2 * math.pi * turns + self.phases[:, None])
        return values

    def slope(self, dim: int) -> Waves:
        """The derivative along one dimension, per cell."""
        factor = 2 * math.pi * self.vectors[:, dim] / self.lengths[dim]
        return Waves(
            self.lengths, self.vectors, self.amplitudes * factor, self.phases + math.pi / 2
        )


def random_waves(
    rng: np.random.Generator, lengths: Sequence[int], magnitudes: Array, amplitudes: Array
) -> Waves:
    """Waves of given magnitudes and amplitudes, with random directions and phases.

    Args:
        rng: source of the directions and phases.
        lengths: cells of the box along each dimension.
        magnitudes: periods per box, (waves,); rounded to whole periods along each dimension.
        amplitudes: (waves,).
    """
    directions = rng.standard_normal((len(magnitudes), len(lengths)))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    vectors = np.rint(directions * magnitudes[:, None])
    phases = rng.uniform(0, 2 * math.pi, len(magnitudes))
    return Waves(tuple(lengths), vectors, np.asarray(amplitudes), phases)


def block_of(index: Sequence[Any], shape: Sequence[int]) -> list[tuple[int, int]]:
    """Turn an index of slices with step 1 into (begin, end) per dimension.

    Raises:
        TypeError: an index is not a slice of step 1.
    """
    if len(index) != len(shape):
        raise TypeError(f"{len(index)} indices for {len(shape)} dimensions: give one for each")
    block = []
    for item, length in zip(index, shape, strict=True):
        if not isinstance(item, slice) or item.step not in (None, 1):
            raise TypeError(f"index {item!r} is not a slice of step 1")
        begin, end, _ = item.indices(length)
        block.append((begin, max(begin, end)))
    return block
