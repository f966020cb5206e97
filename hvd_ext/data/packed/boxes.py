"""The elements of a box that are in given blocks of a record; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_ext.data.packed.layout import BLOCK_BYTES, Field

Box = tuple[tuple[int, int], ...]  # (first, end) along each dim


def per_dim(given: Any, dims: int) -> list[int | slice]:
    """Return an index of NumPy as one number or slice for each dim.

    Raises:
        IndexError: it has more entries than there are dims.
        TypeError: it has an entry of another type.
    """
    parts = list(given) if isinstance(given, tuple) else [given]
    dots = [place for place, part in enumerate(parts) if part is Ellipsis]
    missing = dims - (len(parts) - len(dots))
    if missing < 0 or len(dots) > 1:
        shown = " ".join(repr(given).split())
        raise IndexError(f"{shown:.80}: give at most one number or slice for each of {dims} dims")
    place = dots[0] if dots else len(parts)
    parts[place : place + len(dots)] = [slice(None)] * missing
    return [part if isinstance(part, slice) else _number(part) for part in parts]


def _number(part: Any) -> int:
    try:
        if not isinstance(part, bool):  # NumPy would take a bool as a mask without dims
            return index(part)
    except TypeError:
        pass
    shown = " ".join(repr(part).split())
    raise TypeError(f"index {shown:.80}: use numbers, slices and ...")


def extent_of(chosen: int | range) -> tuple[int, int]:
    """Return the first and the end of the range that encloses a number or a range's numbers."""
    if isinstance(chosen, int):
        return chosen, chosen + 1
    return (min(chosen[0], chosen[-1]), max(chosen[0], chosen[-1]) + 1) if chosen else (0, 0)


def runs(wanted: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the first and the end of each run of wanted elements."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], wanted, [False]]).astype(np.int8)))
    return [(int(first), int(end)) for first, end in edges.reshape(-1, 2)]


def run_boxes(shape: Sequence[int], first: int, end: int) -> Iterator[Box]:
    """Return the boxes that make up a run of an array's elements, in row-major order."""
    if first >= end:
        return
    if not shape:
        yield ()
        return
    row = prod(shape[1:])
    begin, last = -(-first // row), end // row  # rows that are in it whole
    if begin > last:  # it lies within one
        inside = run_boxes(shape[1:], first - last * row, end - last * row)
        yield from (((last, last + 1), *box) for box in inside)
        return
    if begin * row > first:
        inside = run_boxes(shape[1:], first - (begin - 1) * row, row)
        yield from (((begin - 1, begin), *box) for box in inside)
    if begin < last:
        yield ((begin, last), *((0, extent) for extent in shape[1:]))
    if last * row < end:
        yield from (((last, last + 1), *box) for box in run_boxes(shape[1:], 0, end - last * row))


def boxes_in_blocks(field: Field, begin: int, blocks: NDArray[np.bool_], box: Box) -> list[Box]:
    """Return the parts of a box of a field that are in some blocks of the record.

    Args:
        field: the array; no element is in two blocks.
        begin: its offset in the record.
        blocks: numbers of the blocks.
        box: box of the array.
    """
    item = np.dtype(field.dtype).itemsize
    found = []
    for first, end in runs(blocks):
        low = max(0, first * BLOCK_BYTES - begin) // item
        high = min(field.count_bytes, end * BLOCK_BYTES - begin) // item
        for part in run_boxes(field.shape, low, high):
            shared = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(part, box, strict=True))
            if all(a < b for a, b in shared):
                found.append(shared)
    return found
