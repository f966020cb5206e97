"""The part of each sample that a rank of a grid reads."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_ext import spatial
from training.held_out import Indices

Block = NDArray[Any]


class Blocks:
    """This rank's block of each of some samples: of inputs, and of targets; a data.Records."""

    def __init__(
        self,
        sources: tuple[spatial.Source, spatial.Source],
        grid: spatial.ProcessGrid,
        samples: Indices,
    ) -> None:
        self._sources, self._grid, self._samples = sources, grid, samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, number: int) -> tuple[Block, Block]:
        sample = int(self._samples[number])
        inputs, targets = (spatial.read_block(s, self._grid, sample) for s in self._sources)
        return inputs, targets

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Bytes of this rank's block of each sample."""
        return np.full(len(self), sum(self._bytes))

    def record(self, sample: int) -> NDArray[np.uint8]:
        """This rank's block, inputs before targets, in the types that the file has."""
        return np.concatenate([block.reshape(-1).view(np.uint8) for block in self[sample]])

    def decode(self, sample: int, record: NDArray[np.uint8]) -> tuple[Block, Block]:
        """A copy: torch knows no read-only memory."""
        parts = zip(self._sources, np.split(record, self._bytes[:1]), strict=True)
        inputs, targets = (
            part.copy().view(_native(source)).reshape(spatial.block_shape(source, self._grid))
            for source, part in parts
        )
        return inputs, targets

    @property
    def _bytes(self) -> list[int]:
        shapes = (spatial.block_shape(source, self._grid) for source in self._sources)
        return [
            prod(shape) * _native(source).itemsize
            for source, shape in zip(self._sources, shapes, strict=True)
        ]


def _native(source: Any) -> np.dtype[Any]:
    """The type of a source's elements, as `read_block` gives them."""
    return np.dtype(source.dtype).newbyteorder("=")
