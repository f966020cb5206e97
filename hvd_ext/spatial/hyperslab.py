"""Reading only this rank's block of a sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hvd_ext.errors import UsageError
from hvd_ext.spatial.geometry.partition import shard
from hvd_ext.spatial.tensor import SpatialTensor

if TYPE_CHECKING:
    from hvd_ext.spatial.grid import ProcessGrid


class Source(Protocol):
    """Anything that slices like an array: NumPy's, a memory map, an h5py.Dataset, a procedure."""

    @property
    def shape(self) -> tuple[int, ...]:
        """`(samples, channels, *space)`, or (samples, values) of whole samples."""

    def __getitem__(self, index: tuple[slice, ...]) -> Any:
        """Return the block of one slice per dimension, each of step 1."""


def open_array(path: Path) -> Source:
    """Map a .npy file; only the parts that are sliced are read.

    Args:
        path: path of the file.

    Returns:
        The array, read-only and in the file.

    Raises:
        UsageError: it is missing, truncated, or not a .npy file of numbers.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise UsageError(f"{path} does not exist: give a .npy file") from error
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"{path} is not a .npy file, or is truncated: {error}") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        raise UsageError(f"{path} does not hold real numbers: write an array with numpy.save")
    return array


def read(
    source: Source, grid: ProcessGrid, samples: Sequence[int], *, dtype: torch.dtype = torch.float32
) -> SpatialTensor | Tensor:
    """Read this rank's block of some samples.

    Args:
        source: `(samples, channels, *space)`, or (samples, values).
        grid: grid whose ranks share each sample.
        samples: numbers of the samples, in order.
        dtype: type of the result.

    Returns:
        The samples, partitioned over the grid; an ordinary tensor if they have no space.

    Raises:
        UsageError: a sample is out of range.
    """
    blocks = [read_block(source, grid, sample) for sample in samples]
    return assemble(blocks, grid, source.shape[2:], dtype=dtype)


def read_block(source: Source, grid: ProcessGrid, sample: int) -> NDArray[Any]:
    """Read this rank's block of a sample, as it is in the source; any thread may.

    Args:
        source: `(samples, channels, *space)`, or (samples, values).
        grid: grid whose ranks share the sample.
        sample: number of the sample.

    Returns:
        `(channels, *lengths of the block)`, or (values,); a copy in this machine's byte order.

    Raises:
        UsageError: the sample is out of range.
    """
    if not 0 <= sample < source.shape[0]:
        raise UsageError(f"sample {sample} is not in 0..{source.shape[0] - 1}")
    inside = (slice(begin, end) for begin, end in _block(source, grid))
    index = (slice(sample, sample + 1), slice(0, source.shape[1]), *inside)
    one = np.asarray(source[index])[0]
    # torch supports neither read-only memory nor the other byte order.
    return one.astype(one.dtype.newbyteorder("="))


def block_shape(source: Source, grid: ProcessGrid) -> tuple[int, ...]:
    """Return the shape of this rank's block of each sample, `(channels, *lengths of the block)`.

    Args:
        source: samples, `(N, C, *space)`.
        grid: how ranks are arranged.
    """
    return (source.shape[1], *(end - begin for begin, end in _block(source, grid)))


def _block(source: Source, grid: ProcessGrid) -> Sequence[tuple[int, int]]:
    extents = tuple(source.shape[2:])
    if not extents:
        return ()
    return shard(extents, grid.shape.parts(len(extents)), grid.coordinates(len(extents)))


def assemble(
    blocks: Sequence[NDArray[Any]],
    grid: ProcessGrid,
    extents: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
) -> SpatialTensor | Tensor:
    """Make a batch of this rank's blocks of some samples.

    Args:
        blocks: results of `read_block`, at least one.
        grid: grid whose ranks share each sample.
        extents: extents of the space of a whole sample; empty: the blocks are whole.
        dtype: type of the result.

    Returns:
        The samples, partitioned over the grid; an ordinary tensor if they have no space.
    """
    rows = torch.empty((len(blocks), *blocks[0].shape), dtype=dtype)
    for row, block in zip(rows, blocks, strict=True):
        row.copy_(torch.from_numpy(block))
    return SpatialTensor(rows, grid, tuple(extents)) if extents else rows
