"""The copies of one launch of the kernel, in the form that the kernel reads: integers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MOST_DIMS = 6
# Words of 64 bits in a row of the kernel's table.
_ROW = 4 + 2 * MOST_DIMS
# The most bytes that one thread copies at once.
_WIDEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Move:
    """A piece of a tensor that is copied into a row of bytes.

    Attributes:
        source: address of its first element.
        shape: shape of the piece.
        strides: bytes from one element to the next along each dim.
        item_bytes: bytes of an element.
        target: address to which its elements go, one after the other.
    """

    source: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int
    target: int

    def merged(self) -> list[tuple[int, int]]:
        """Return (length, stride) of the dims after merging adjacent dims where possible."""
        dims: list[tuple[int, int]] = []
        for length, stride in zip(self.shape, self.strides, strict=True):
            if length == 1:
                continue
            if dims and dims[-1][1] == length * stride:
                dims[-1] = (dims[-1][0] * length, stride)
            else:
                dims.append((length, stride))
        return dims


def flat(source: int, nbytes: int, target: int) -> Move:
    """Return the move of contiguous bytes."""
    return Move(source, (nbytes,), (1,), 1, target)


def table(moves: Sequence[Move]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the kernel's table, a row for each move with elements; at most MOST_DIMS dims."""
    rows = [_row(move) for move in moves if 0 not in move.shape]
    return np.array(rows, np.uint64).reshape(len(rows), _ROW)


def _row(move: Move) -> list[int]:
    dims = move.merged()
    unit = move.item_bytes
    if not dims or dims[-1][1] == unit:
        # The last dim's elements are contiguous, so several are copied at once.
        run = (dims.pop()[0] if dims else 1) * unit
        unit = _WIDEST_BYTES
        while any(n % unit for n in (run, move.source, move.target, *(s for _, s in dims))):
            unit //= 2
        if run > unit:
            dims.append((run // unit, unit))
    count = 1
    for length, _ in dims:
        count *= length
    padding = [(1, 0)] * (MOST_DIMS - len(dims))
    lengths, strides = zip(*padding, *dims, strict=True)
    return [move.source, move.target, count, unit, *lengths, *strides]
