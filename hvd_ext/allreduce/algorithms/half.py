"""16-bit floats: accumulated in float32, and rounded once.

numpy has no bfloat16: its bits are kept in an array of uint16, and the caller says what
they are. A message is widened block by block, so that it takes little memory and is
still in the cache when it is combined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.allreduce.algorithms.segments import scratch
from hvd_ext.allreduce.operations import Array, Operation
from hvd_ext.units import MIB

if TYPE_CHECKING:
    from mpi4py import MPI

# Bytes as float32: long enough for several segments of an algorithm.
_BLOCK_BYTES = 8 * MIB


def reduce_half(
    algorithm: Callable[[MPI.Comm, Array, Operation], None],
    comm: MPI.Comm,
    buffer: Array,
    operation: Operation,
) -> None:
    """Reduce float16, or bfloat16 in an array of uint16, over all ranks, in place."""
    block = _BLOCK_BYTES // 4
    for begin in range(0, len(buffer), block):
        part = buffer[begin : begin + block]
        wide = scratch(len(part), np.float32, "wide")
        widen(part, wide)
        algorithm(comm, wide, operation)
        if operation.name == "average":
            np.divide(wide, comm.size, out=wide)
        narrow(wide, part)


def widen(half: Array, wide: Array) -> None:
    """Write 16-bit floats as float32, exactly."""
    if half.dtype == np.float16:
        np.copyto(wide, half)
    else:
        bits = wide.view(np.uint32)
        np.copyto(bits, half)
        np.left_shift(bits, 16, out=bits)


def narrow(wide: Array, half: Array) -> None:
    """Round float32 to the nearest 16-bit float, ties to even."""
    if half.dtype == np.float16:
        np.copyto(half, wide, casting="same_kind")
        return
    bits = wide.view(np.uint32)
    rounded = scratch(len(wide), np.uint32, "rounded")
    np.right_shift(bits, 16, out=rounded)
    np.bitwise_and(rounded, 1, out=rounded)
    np.add(rounded, 0x7FFF, out=rounded)
    np.add(rounded, bits, out=rounded)
    np.right_shift(rounded, 16, out=rounded)
    np.copyto(half, rounded, casting="unsafe")
    nan = np.isnan(wide)
    if nan.any():
        # Rounding up may have turned the bits of a NaN into those of a number.
        half[nan] = bits[nan] >> 16 | 0x40
