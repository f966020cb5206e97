"""The part of each sample that a rank of a grid reads."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hvd_ext import spatial
from hvd_ext.data import GroupReader, PackedField
from hvd_ext.spatial.geometry.partition import Box, shard
from training.samples.held_out import Indices

if TYPE_CHECKING:
    from mpi4py import MPI

Block = NDArray[Any]


class Blocks:
    """This rank's blocks of the inputs and targets of some samples; a data.Records."""

    def __init__(
        self,
        sources: tuple[spatial.Source, spatial.Source],
        grid: spatial.ProcessGrid,
        samples: Indices,
        group: MPI.Comm | None = None,
    ) -> None:
        """Describe the blocks; with `group` a collective.

        Args:
            sources: sources of all samples.
            grid: the grid whose ranks share each sample.
            samples: numbers of the samples.
            group: the ranks that share each sample, which read each byte of a packed file once
                together, and must ask for the same samples; None: this one reads for itself.
        """
        self._sources, self._grid, self._samples = sources, grid, samples
        self._reader: GroupReader | None = None
        self._record_bytes = sum(self._bytes)
        if group is not None:
            # Equal on all ranks, so that their stores keep the same samples.
            self._record_bytes = max(group.allgather(self._record_bytes))
            fields = [source for source in sources if isinstance(source, PackedField)]
            if len(fields) == len(sources):
                self._reader = GroupReader(fields, [_box(field, grid) for field in fields], group)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, number: int) -> tuple[Block, Block]:
        sample = int(self._samples[number])
        if self._reader:
            inputs, targets = (
                block.astype(block.dtype.newbyteorder("="), copy=False)
                for block in self._reader.read(sample)
            )
        else:
            inputs, targets = (spatial.read_block(s, self._grid, sample) for s in self._sources)
        return inputs, targets

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Bytes of the record of each sample."""
        return np.full(len(self), self._record_bytes)

    def record(self, sample: int) -> NDArray[np.uint8]:
        """This rank's block, inputs before targets, in the types that the file has."""
        record = np.zeros(self._record_bytes, np.uint8)
        for block, (begin, end) in zip(self[sample], self._places, strict=True):
            record[begin:end] = block.reshape(-1).view(np.uint8)
        return record

    def decode(self, sample: int, record: NDArray[np.uint8]) -> tuple[Block, Block]:
        """A copy: torch knows no read-only memory."""
        inputs, targets = (
            record[begin:end]
            .copy()
            .view(_native(source))
            .reshape(spatial.block_shape(source, self._grid))
            for source, (begin, end) in zip(self._sources, self._places, strict=True)
        )
        return inputs, targets

    def close(self) -> None:
        """End reading together; with a group a collective."""
        if self._reader:
            self._reader.close()

    @property
    def _places(self) -> list[tuple[int, int]]:
        """Return the places of inputs and targets in a record."""
        ends = np.cumsum(self._bytes).tolist()
        return list(zip([0, *ends[:-1]], ends, strict=True))

    @property
    def _bytes(self) -> list[int]:
        shapes = (spatial.block_shape(source, self._grid) for source in self._sources)
        return [
            prod(shape) * _native(source).itemsize
            for source, shape in zip(self._sources, shapes, strict=True)
        ]


def _native(source: Any) -> np.dtype[Any]:
    """Return the type of a source's elements, as in the result of `read_block`."""
    dtype = getattr(source, "dtype", None)
    if dtype is None:  # which no source must have
        dtype = np.asarray(source[(slice(0, 1),) * len(source.shape)]).dtype
    return np.dtype(dtype).newbyteorder("=")


def _box(field: PackedField, grid: spatial.ProcessGrid) -> Box:
    """This rank's part of each sample: all channels, and its block of space."""
    channels, *space = field.field.shape
    if not space:
        return ((0, channels),)
    dims = len(space)
    return ((0, channels), *shard(space, grid.shape.parts(dims), grid.coordinates(dims)))
