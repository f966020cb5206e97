"""The canonical partition: who owns which part of an extent, by arithmetic alone.

It depends on the global extent and on the number of parts, never on how a tensor came
about: two tensors of equal extents are cut in the same places, so that a skip connection finds its
other end on the same rank, whatever strides and upsamplings lie between.
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
    """The `parts` + 1 places where an extent is cut: shard i is [cuts[i], cuts[i + 1]).

    Shards differ by at most one; some are empty where there are more parts than cells.
    The cuts of half the extent, doubled, are never more than one cell from these, so a
    layer of stride 2 moves next to nothing between ranks.
    """
    return tuple(extent * index // parts for index in range(parts + 1))


def shard(extents: Sequence[int], parts: Sequence[int], coordinates: Sequence[int]) -> Box:
    """The block [begin, end) per dim that the rank at `coordinates` of the grid owns."""
    bounds = [cuts(extent, count) for extent, count in zip(extents, parts, strict=True)]
    return tuple((bound[at], bound[at + 1]) for bound, at in zip(bounds, coordinates, strict=True))


def lengths(box: Box) -> tuple[int, ...]:
    return tuple(end - begin for begin, end in box)


def volume(box: Box) -> int:
    return math.prod(max(0, end - begin) for begin, end in box)


def intersect(one: Interval, other: Interval) -> Interval:
    """The intersection of two intervals; an empty interval starts where it ends."""
    begin, end = max(one[0], other[0]), min(one[1], other[1])
    return (begin, max(begin, end))


def intersect_boxes(one: Box, other: Box) -> Box | None:
    shared = tuple(map(intersect, one, other))
    return None if any(begin == end for begin, end in shared) else shared


def position(parts: Sequence[int], coordinates: Sequence[int]) -> int:
    """Rank in the space group of the rank at `coordinates`: row-major, last axis fastest."""
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
    """Cut what is around `inner` inside `box` into at most two slabs per dim.

    The slabs are disjoint and, with `inner`, fill `box`. An empty inner leaves `box` whole.
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
    """All boxes made of one interval per dim, in row-major order."""
    return list(itertools.product(*choices))
