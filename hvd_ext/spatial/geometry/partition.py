"""The canonical partition: the parts of an extent and their owners, computed by arithmetic.

It depends only on the global extent and the number of parts, not on the operations that made a
tensor. Two tensors of equal extents are cut in the same places, so both ends of a skip connection
are on the same rank, whatever strides and upsamplings are between them.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

Interval = tuple[int, int]
Box = tuple[Interval, ...]


@functools.lru_cache(maxsize=4096)
def cuts(extent: int, parts: int) -> tuple[int, ...]:
    """Return the `parts` + 1 places at which an extent is cut: shard i is [cuts[i], cuts[i + 1]).

    Shards differ by at most one cell; some are empty if there are more parts than cells. The cuts
    of half the extent, doubled, differ from these by at most one cell, so a layer of stride 2 moves
    very little data between ranks.
    """
    return tuple(extent * index // parts for index in range(parts + 1))


def shard(extents: Sequence[int], parts: Sequence[int], coordinates: Sequence[int]) -> Box:
    """Return the block [begin, end) per dim that the rank at `coordinates` of the grid owns."""
    bounds = [cuts(extent, count) for extent, count in zip(extents, parts, strict=True)]
    return tuple((bound[at], bound[at + 1]) for bound, at in zip(bounds, coordinates, strict=True))


def lengths(box: Box) -> tuple[int, ...]:
    return tuple(end - begin for begin, end in box)


def volume(box: Box) -> int:
    return math.prod(max(0, end - begin) for begin, end in box)


def intersect(one: Interval, other: Interval) -> Interval:
    """Return the intersection of two intervals; an empty interval starts where it ends."""
    begin, end = max(one[0], other[0]), min(one[1], other[1])
    return (begin, max(begin, end))


def intersect_boxes(one: Box, other: Box) -> Box | None:
    shared = tuple(map(intersect, one, other))
    return None if any(begin == end for begin, end in shared) else shared


def position(parts: Sequence[int], coordinates: Sequence[int]) -> int:
    """Return the rank at `coordinates` in the space group: row-major, last axis fastest."""
    rank = 0
    for count, at in zip(parts, coordinates, strict=True):
        rank = rank * count + at
    return rank


def coordinates_of(parts: Sequence[int], rank: int) -> tuple[int, ...]:
    """Inverse of `position`."""
    found = []
    for count in reversed(parts):
        rank, at = divmod(rank, count)
        found.append(at)
    return tuple(reversed(found))


def peel(box: Box, inner: Box) -> list[Box]:
    """Cut the part of `box` around `inner` into at most two slabs per dim.

    The slabs are disjoint and, with `inner`, fill `box`. If `inner` is empty, `box` stays whole.
    """
    if any(begin >= end for begin, end in inner):
        return [box] if all(begin < end for begin, end in box) else []
    slabs = []
    for dim, ((begin, end), (inner_begin, inner_end)) in enumerate(zip(box, inner, strict=True)):
        for part in ((begin, inner_begin), (inner_end, end)):
            slab = (*inner[:dim], part, *box[dim + 1 :])
            if all(low < high for low, high in slab):
                slabs.append(slab)
    return slabs


def product(choices: Sequence[Sequence[Interval]]) -> list[Box]:
    """Return all boxes with one interval per dim, in row-major order."""
    return list(itertools.product(*choices))
