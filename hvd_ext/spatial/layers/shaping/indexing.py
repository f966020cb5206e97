"""Shapes: joining, splitting, adding and dropping dims, along those that are not split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hvd_ext.spatial.layers.gather import gather_as
from hvd_ext.spatial.layers.operands import along, placed, reduced, shard_of, unsplit
from hvd_ext.spatial.layers.shaping.blocks import cut, merged
from hvd_ext.spatial.tensor import SpatialTensor, global_shape, implements
from hvd_ext.spatial.unsupported import UnsupportedError, name_of


@implements(torch.cat, torch.concat, torch.concatenate, any_operand=True)
def cat(tensors: Sequence[SpatialTensor | Tensor], dim: int = 0) -> SpatialTensor:
    """Concatenate along a dim that is not split: skip connections.

    Tensors that are whole on every rank (pooled and enlarged ones, coordinates) are cut to the
    shard; all others must be split alike.
    """
    one = next(tensor for tensor in tensors if isinstance(tensor, SpatialTensor))
    place = unsplit(one, dim, "cat")
    others = [size for at, size in enumerate(one.shape) if at != place]
    for number, tensor in enumerate(tensors):
        if [size for at, size in enumerate(tensor.shape) if at != place] != others:
            raise UnsupportedError(
                f"cat along dim {dim} of tensors of shapes {[tuple(t.shape) for t in tensors]}: "
                f"number {number} differs from {one!r} in another dim"
            )
    return one.like(torch.cat([shard_of(torch.cat, t, one) for t in tensors], place))


@implements(torch.stack, any_operand=True)
def stack(tensors: Sequence[Any], dim: int = 0) -> SpatialTensor:
    """Stack along a new dim."""
    spread: list[Any] = [torch.unsqueeze(tensor, dim) for tensor in tensors]
    return cat(spread, dim)


def _splitter(function: Any) -> Any:
    def handler(
        x: SpatialTensor, parts: Any = None, dim: int = 0, **named: Any
    ) -> tuple[SpatialTensor, ...]:
        # torch's functions have different names for it.
        parts = next(iter(named.values()), parts)
        place = unsplit(x, dim, name_of(function))
        return tuple(x.like(part) for part in function(x.local, parts, place))

    return handler


for _function in (
    *(torch.chunk, Tensor.chunk, torch.split, Tensor.split, torch.tensor_split),
    *(Tensor.tensor_split, torch.split_with_sizes, Tensor.split_with_sizes),
):
    implements(_function)(_splitter(_function))


@implements(Tensor.unsqueeze, torch.unsqueeze)
def unsqueeze(x: SpatialTensor, dim: int) -> SpatialTensor | Tensor:
    """Add a dim of one cell, which is not split."""
    place = dim if dim >= 0 else dim + x.ndim + 1
    if not 0 <= place <= x.ndim:
        raise UnsupportedError(f"unsqueeze at dim {dim} of {x!r}: it has room at 0 to {x.ndim}")
    dims = along(x)
    return placed(x, x.local.unsqueeze(place), [*dims[:place], None, *dims[place:]])


@implements(Tensor.squeeze, torch.squeeze)
def squeeze(x: SpatialTensor, dim: int) -> SpatialTensor | Tensor:
    """Drop a dim of one cell that is not split."""
    return reduced(x, x.local.squeeze(unsplit(x, dim, "squeeze")), (dim,))


@implements(torch.flatten, Tensor.flatten)
def flatten(x: SpatialTensor, start_dim: int = 0, end_dim: int = -1) -> SpatialTensor | Tensor:
    """Flatten; if split dims are among the flattened ones, gather first."""
    asked = global_shape(torch.flatten, (tuple(x.shape),), (start_dim, end_dim))
    start, end = start_dim % x.ndim, end_dim % x.ndim
    space = x.split_dims or range(len(x.lead), len(x.lead) + len(x.extents))
    among = [dim for dim in space if start <= dim <= end]
    # A split dim in first place may be merged with the cells of its blocks.
    return reshape(x, asked) if among in ([], [start]) else gather_as(x, asked)


@implements(Tensor.view, Tensor.reshape, torch.reshape)
def reshape(x: SpatialTensor, *sizes: Any, shape: Sequence[int] = ()) -> SpatialTensor | Tensor:
    """Change the shape; if split dims are merged, not only cut into blocks, gather first."""
    given = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    asked = global_shape(torch.reshape, (tuple(x.shape),), (given or tuple(shape),))
    first = len(x.lead)
    for kept in _ranges(x):
        if (places := _kept(tuple(x.shape), asked, kept)) is not None:
            own = list(asked)
            dims: list[int | None] = [None] * len(asked)
            for place, dim in zip(places, kept, strict=True):
                own[place], dims[place] = x.local.shape[dim], dim - first
            return placed(x, x.local.reshape(own), dims)
    for found in (cut(x, asked), merged(x, asked)):
        if found is not None:
            return found
    return gather_as(x, asked)


def _ranges(x: SpatialTensor) -> list[range]:
    """Return possible dims of the space, which include all split ones, the longest choice first."""
    first, end = len(x.lead), len(x.lead) + len(x.extents)
    begins = range(first, x.split_dims[0] + 1 if x.split_dims else end)
    ends = range(x.split_dims[-1] + 1 if x.split_dims else end, end + 1)
    return sorted((range(a, b) for a in begins for b in ends), key=len, reverse=True)


def _kept(shape: tuple[int, ...], asked: tuple[int, ...], dims: Sequence[int]) -> list[int] | None:
    """Return the last places in `asked` at which some dims of `shape` are unchanged, or None."""
    places: list[int] = []
    end = len(asked)
    for dim in reversed(dims):
        behind = math.prod(shape[dim + 1 :])
        end = next(
            (
                place
                for place in reversed(range(end))
                if asked[place] == shape[dim] and math.prod(asked[place + 1 :]) == behind
            ),
            -1,
        )
        if end < 0:
            return None
        places.insert(0, end)
    return places


@implements(torch.unbind, Tensor.unbind)
def unbind(x: SpatialTensor, dim: int = 0) -> tuple[SpatialTensor | Tensor, ...]:
    """Return a tensor for each place along an unsplit dim; also used by `for sample in x`."""
    place = unsplit(x, dim, "unbind")
    return tuple(reduced(x, part, (place,)) for part in x.local.unbind(place))


@implements(Tensor.select, torch.select)
def select(x: SpatialTensor, dim: int, index: int) -> SpatialTensor | Tensor:
    """Return one place along a dim that is not split."""
    return reduced(x, x.local.select(unsplit(x, dim, "select"), index), (dim,))
