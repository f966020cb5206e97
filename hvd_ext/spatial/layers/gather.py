"""Making replicated tensors partitioned, and partitioned ones whole."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hvd_ext.spatial.copies import countable
from hvd_ext.spatial.exchange.assemble import index_of, join
from hvd_ext.spatial.exchange.halo import exchange_around
from hvd_ext.spatial.exchange.replicated import to_partitioned, to_replicated
from hvd_ext.spatial.geometry.exchange_plan import plan_exchange
from hvd_ext.spatial.geometry.partition import (
    Box,
    Interval,
    coordinates_of,
    intersect_boxes,
    product,
    shard,
)
from hvd_ext.spatial.grid import ProcessGrid
from hvd_ext.spatial.tensor import SpatialTensor, implements
from hvd_ext.spatial.unsupported import UnsupportedError, current_layer
from hvd_ext.units import format_bytes

log = logging.getLogger("hvd_ext")


def scatter(tensor: Tensor, grid: ProcessGrid, spatial_dims: int | None = None) -> SpatialTensor:
    """Keep this rank's shard of a tensor that every rank of its space group has whole.

    Nothing is sent. The shard is a copy, so that the whole can be freed.

    Args:
        tensor: `(N, C, *extents)`, the same on all ranks of the space group.
        grid: arrangement of the ranks.
        spatial_dims: number of split dims, which are the last ones; by default all but two. Labels
            (N, H, W) have 2.

    Returns:
        The tensor of global shape, of which this rank holds its shard.

    Raises:
        UnsupportedError: the tensor has fewer dims, or the grid splits others.
    """
    if isinstance(tensor, SpatialTensor):
        raise UnsupportedError(f"scatter of {tensor!r}: it is split already")
    dims = tensor.ndim - 2 if spatial_dims is None else spatial_dims
    if not 1 <= dims <= min(3, tensor.ndim):
        raise UnsupportedError(
            f"scatter of a tensor of shape {tuple(tensor.shape)} over {dims} spatial dims: "
            "1 to 3 of its last dims can be split; use spatial_dims=2 for labels (N, H, W)"
        )
    return scatter_over(tensor, grid, grid.shape.parts(dims))


def scatter_over(tensor: Tensor, grid: ProcessGrid, parts: tuple[int, ...]) -> SpatialTensor:
    """Like `scatter`, for a number of ranks along each of the last dims."""
    extents = tuple(tensor.shape[tensor.ndim - len(parts) :])
    box = shard(extents, parts, coordinates_of(parts, grid.space.rank))
    whole = tuple((0, extent) for extent in extents)
    local = to_partitioned(tensor, grid.space)[index_of(box, whole)].clone()
    return SpatialTensor(local, grid, extents, parts=parts)


@implements("gather")
def gather(x: SpatialTensor) -> Tensor:
    """Return the whole tensor on every rank of the space group; it is then replicated.

    Parameters that are used on it get whole gradients on every rank, and so is their mean.

    Args:
        x: split tensor, `(N, C, *space)` of global shape.

    Returns:
        The whole tensor, the same on every rank of the space group.

    Raises:
        UnsupportedError: `x` is not split, or a copy of it was changed in place.
    """
    if not isinstance(x, SpatialTensor):
        raise UnsupportedError(f"gather of a tensor of shape {tuple(x.shape)}: it is not split")
    x.copies.check(gather)
    if x.behind:
        split = range(len(x.lead), len(x.lead) + len(x.extents))
        places = range(-len(x.extents), 0)
        last = x.like(x.local.movedim(tuple(split), tuple(places)), behind=0)
        return gather(last).movedim(tuple(places), tuple(split))
    everything = [[[(0, extent)]] * parts for extent, parts in zip(x.extents, x.parts, strict=True)]
    return fetch(x.like(to_replicated(x.local, x.grid.space)), everything)


def gather_as(x: SpatialTensor, shape: Sequence[int], what: str = "") -> Tensor:
    """Return the whole in another shape: a copy, where torch has a view; a log line says where.

    Args:
        x: split tensor.
        shape: the requested shape.
        what: operation that cannot work on shards, for errors; by default the shape.

    Raises:
        UnsupportedError: `convert` was called with allow_gather=False.
    """
    layer = current_layer()
    what = what or f"from {tuple(x.shape)} to {tuple(shape)}, which merges or cuts split dims"
    if not layer.allow_gather:
        raise UnsupportedError(f"{what}: it needs a gather, but allow_gather=False")
    if x.grid.space.size > 1 and x.grid.space.rank == 0 and not x.local.is_meta:
        nbytes = format_bytes(x.shape.numel() * x.dtype.itemsize)
        where = f"layer {layer.name!r}" if layer.name else "outside a converted model"
        _say_once(f"hvd_ext: {where}: {what}: from here on every rank has the whole, of {nbytes}")
    whole = countable(gather(x).reshape(tuple(shape)))
    x.copies.add(whole, whole)
    return whole


@functools.lru_cache(maxsize=1024)
def _say_once(line: str) -> None:
    log.warning(line)


def fetch(x: SpatialTensor, needed: Sequence[Sequence[Sequence[Interval]]]) -> Tensor:
    """Return the block that this rank needs of `x`, with intervals joined end to end.

    Args:
        x: the input.
        needed: per split dim and part, disjoint ascending intervals of the extent.
    """
    here = x.place
    frozen = tuple(tuple(tuple(part) for part in dim) for dim in needed)
    plan = plan_exchange(x.extents, frozen, here)
    mine = [dim[at] for dim, at in zip(frozen, here, strict=True)]
    # The place of each interval in the block.
    starts = []
    for intervals in mine:
        offset, along = 0, []
        for begin, end in intervals:
            along.append((begin, end, offset - begin))
            offset += end - begin
        starts.append((along, offset))
    whole = tuple((0, count) for _, count in starts)
    own = _own_boxes(mine, plan.shard)
    halo = exchange_around(plan, x.grid.space, own, x.local, lambda slices: None, overlap=False)
    found = zip([*own, *plan.received_boxes], [*halo.slices, *halo.pieces], strict=True)
    placed = [(_moved(box, starts), piece) for box, piece in found]
    return join(whole, placed, x.local, 0.0, halo.ties)


def _own_boxes(mine: Sequence[Sequence[Interval]], shard: Box) -> list[Box]:
    boxes = (intersect_boxes(box, shard) for box in product(mine))
    return [box for box in boxes if box is not None]


def _moved(box: Box, starts: Sequence[Any]) -> Box:
    moved = []
    for (begin, end), (along, _) in zip(box, starts, strict=True):
        shift = next(s for low, high, s in along if low <= begin and end <= high)
        moved.append((begin + shift, end + shift))
    return tuple(moved)
