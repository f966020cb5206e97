"""One rank's part of an operation with windows: its outputs, and the inputs it needs."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from hvd_ext.spatial.geometry.exchange_plan import ExchangePlan, plan_exchange
from hvd_ext.spatial.geometry.partition import Box, intersect_boxes, peel, shard, volume
from hvd_ext.spatial.geometry.windows import Sliding, Unsplit, Window, interior, needs


@dataclass(frozen=True, slots=True)
class Block:
    """Outputs that are computed together.

    Attributes:
        outputs: their box.
        inputs: the box of inputs that they need, unclipped.
        own: the part of `inputs` within the rank's own shard, or None.
        received: the parts within received boxes, as (number of the box, part of it).
    """

    outputs: Box
    inputs: Box
    own: Box | None
    received: tuple[tuple[int, Box], ...]


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """One rank's part of an operation; boxes are in global coordinates.

    Attributes:
        owned: the outputs that this rank owns.
        exchange: the exchange that brings the inputs that they need.
        interior: outputs that need no input of other ranks; None if there are too few.
        boundary: the other outputs.
        padding: zeros on both sides of the shard, per dim, with which the operation computes
            exactly `owned`; None if that is not possible.
    """

    owned: Box
    exchange: ExchangePlan
    interior: Block | None
    boundary: tuple[Block, ...]
    padding: tuple[int, ...] | None

    @property
    def interior_share(self) -> float:
        """Return the share of interior outputs in the owned outputs."""
        return volume(self.interior.outputs) / volume(self.owned) if self.interior else 0.0


@functools.lru_cache(maxsize=8192)
def plan_windows(
    windows: tuple[Window, ...],
    extents: tuple[int, ...],
    outputs: tuple[int, ...],
    parts: tuple[int, ...],
    coordinates: tuple[int, ...],
    least_share: float,
) -> WindowPlan:
    """Plan an operation.

    Args:
        windows: per split dim, the inputs that an output needs.
        extents: global extents of the input.
        outputs: global extents of the output.
        parts: ranks along each dim.
        coordinates: this rank's place in the grid.
        least_share: share of the owned outputs below which a separate interior does not pay.
    """
    owned = shard(outputs, parts, coordinates)
    needed = tuple(
        tuple((interval,) for interval in needs(*along))
        for along in zip(windows, outputs, extents, parts, strict=True)
    )
    exchange = plan_exchange(extents, needed, coordinates)
    own = exchange.shard

    def block(box: Box) -> Block:
        inputs = tuple(
            window.input_range(interval) for window, interval in zip(windows, box, strict=True)
        )
        shared = (intersect_boxes(held, inputs) for held in exchange.received_boxes)
        received = tuple((number, part) for number, part in enumerate(shared) if part is not None)
        return Block(box, inputs, intersect_boxes(inputs, own), received)

    inside = tuple(map(interior, windows, owned, own, extents))
    found = block(inside) if volume(inside) >= max(1, least_share * volume(owned)) else None
    if found is None or found.own is None:
        found, inside = None, tuple((begin, begin) for begin, _ in owned)
    padding = [
        window.padding_of(held, made) if isinstance(window, Sliding | Unsplit) else None
        for window, held, made in zip(windows, own, owned, strict=True)
    ]
    zeros = tuple(cells for cells in padding if cells is not None)
    return WindowPlan(
        owned,
        exchange,
        found,
        tuple(map(block, peel(owned, inside))),
        zeros if len(zeros) == len(windows) else None,
    )
