"""The messages that bring each rank of a grid the inputs that it needs: pure.

Every rank has the global extents, so each computes both ends of all its messages by itself, and
nothing is negotiated. A message goes straight from owner to user, also to diagonal neighbors and
over several shards.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

from hvd_ext.spatial.geometry.partition import Box, Interval, position, product, shard
from hvd_ext.spatial.geometry.windows import transfers

Needs = tuple[tuple[Interval, ...], ...]
# Boxes by peer.
Messages = tuple[tuple[int, tuple[Box, ...]], ...]


@dataclass(frozen=True, slots=True)
class ExchangePlan:
    """One rank's part of an exchange; boxes are in global coordinates.

    Attributes:
        shard: the block that this rank owns.
        sends: boxes of it that each peer needs, by rank in the space group.
        receives: boxes that this rank needs of each peer.
        received_boxes: all boxes of `receives`, in the order of the messages.
        active: whether any rank of the group sends a message; the same on all ranks.
    """

    shard: Box
    sends: Messages
    receives: Messages
    received_boxes: tuple[Box, ...]
    active: bool


@functools.lru_cache(maxsize=8192)
def plan_exchange(
    extents: tuple[int, ...], needed: tuple[Needs, ...], coordinates: tuple[int, ...]
) -> ExchangePlan:
    """Plan an exchange.

    Args:
        extents: global extent of each dim.
        needed: per dim, per part, the intervals of [0, extent) that the part needs;
            disjoint and ascending.
        coordinates: this rank's place in the grid.
    """
    parts = tuple(map(len, needed))
    # between[dim][to][of]: the intervals that `to` needs of `of`.
    between = [_between(extent, needs) for extent, needs in zip(extents, needed, strict=True)]
    receives = _messages(
        parts, coordinates, [table[at] for table, at in zip(between, coordinates, strict=True)]
    )
    sends = _messages(
        parts,
        coordinates,
        [[row[at] for row in table] for table, at in zip(between, coordinates, strict=True)],
    )
    anything = all(any(any(row) for row in table) for table in between)
    across = any(
        table[to][of]
        for table in between
        for to, of in itertools.permutations(range(len(table)), 2)
    )
    received = tuple(box for _, boxes in receives for box in boxes)
    own = shard(extents, parts, coordinates)
    return ExchangePlan(own, sends, receives, received, anything and across)


def _between(extent: int, needs: Needs) -> list[list[list[Interval]]]:
    table: list[list[list[Interval]]] = [[[] for _ in needs] for _ in needs]
    most = max(map(len, needs))
    for number in range(most):
        one = [intervals[number] if number < len(intervals) else (0, 0) for intervals in needs]
        for to, row in enumerate(transfers(one, extent)):
            for of, (begin, end) in enumerate(row):
                if begin < end:
                    table[to][of].append((begin, end))
    return table


def _messages(
    parts: tuple[int, ...], coordinates: tuple[int, ...], shared: list[list[list[Interval]]]
) -> Messages:
    """Return the boxes shared with each peer, from the intervals shared along each dim."""
    near = [[at for at, intervals in enumerate(along) if intervals] for along in shared]
    return tuple(
        (
            position(parts, peer),
            tuple(product([along[at] for along, at in zip(shared, peer, strict=True)])),
        )
        for peer in itertools.product(*near)
        if peer != coordinates
    )
