"""Each rank reads its own block of a sample, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hvd_ext.errors import UsageError
from hvd_ext.spatial.geometry.partition import shard
from hvd_ext.spatial.tensor import SpatialTensor

if TYPE_CHECKING:
    from hvd_ext.spatial.grid import ProcessGrid


class Source(Protocol):
    """What slices like an array: NumPy's, a memory map, an h5py.Dataset, a procedure."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(samples, channels, *space), or (samples, values) of whole samples."""

    def __getitem__(self, index: tuple[slice, ...]) -> Any:
        """The block of one slice per dimension, each of step 1."""


def open_array(path: Path) -> Source:
    """Map a .npy file; what is not sliced is not read.

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
        source: (samples, channels, *space), or (samples, values).
        grid: whose ranks share each sample.
        samples: which ones, in the order wanted.
        dtype: of the result.

    Returns:
        The samples, partitioned over the grid; an ordinary tensor if they have no space.

    Raises:
        UsageError: a sample is out of range.
    """
    extents = tuple(source.shape[2:])
    for sample in samples:
        if not 0 <= sample < source.shape[0]:
            raise UsageError(f"sample {sample} is not in 0..{source.shape[0] - 1}")
    if not extents:
        return _rows(source, samples, (), dtype)
    block = shard(extents, grid.shape.parts(len(extents)), grid.coordinates(len(extents)))
    return SpatialTensor(_rows(source, samples, block, dtype), grid, extents)


def _rows(
    source: Source, samples: Sequence[int], block: Sequence[tuple[int, int]], dtype: torch.dtype
) -> Tensor:
    lengths = [end - begin for begin, end in block]
    rows = torch.empty((len(samples), source.shape[1], *lengths), dtype=dtype)
    index = (slice(0, source.shape[1]), *(slice(begin, end) for begin, end in block))
    for row, sample in zip(rows, samples, strict=True):
        one = (slice(sample, sample + 1), *index)
        piece = np.asarray(source[one])[0]
        # torch knows neither read-only memory nor the other byte order.
        row.copy_(torch.from_numpy(piece.astype(piece.dtype.newbyteorder("="))))
    return rows
