"""Shapes: joining, cutting and flattening, along dims that are not split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hvd_ext.spatial.layers.gather import gather_as
from hvd_ext.spatial.layers.operands import reduced, shard_of, unsplit
from hvd_ext.spatial.layers.shaping.apart import cut, merged
from hvd_ext.spatial.tensor import SpatialTensor, global_shape, implements
from hvd_ext.spatial.unsupported import UnsupportedError, name_of


@implements(torch.cat, torch.concat, torch.concatenate, any_operand=True, behind=True)
def cat(tensors: Sequence[SpatialTensor | Tensor], dim: int = 0) -> SpatialTensor:
    """Concatenate along a dim that is not split: skip connections.

    Tensors that are whole on every rank (pooled and enlarged again, coordinates) are cut to
    the shard; the others must be split alike.
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
    """Stack along a new dim before those that are split."""
    spread: list[Any] = [torch.unsqueeze(tensor, dim) for tensor in tensors]
    return cat(spread, dim)


def _splitter(function: Any) -> Any:
    def handler(
        x: SpatialTensor, parts: Any = None, dim: int = 0, **named: Any
    ) -> tuple[SpatialTensor, ...]:
        # Each of torch's calls it otherwise.
        parts = next(iter(named.values()), parts)
        place = unsplit(x, dim, name_of(function))
        return tuple(x.like(part) for part in function(x.local, parts, place))

    return handler


for _function in (
    *(torch.chunk, Tensor.chunk, torch.split, Tensor.split, torch.tensor_split),
    *(Tensor.tensor_split, torch.split_with_sizes, Tensor.split_with_sizes),
):
    implements(_function, behind=True)(_splitter(_function))


@implements(Tensor.unsqueeze, torch.unsqueeze, behind=True)
def unsqueeze(x: SpatialTensor, dim: int) -> SpatialTensor:
    """A new dim before those that are split, or after them."""
    place = dim if dim >= 0 else dim + x.ndim + 1
    first, end = len(x.lead), len(x.lead) + len(x.extents)
    if not 0 <= place <= x.ndim or first < place < end:
        raise UnsupportedError(
            f"unsqueeze at dim {dim} of {x!r}: there is room at 0 to {first} and at {end} to "
            f"{x.ndim}, not between the dims that are split"
        )
    return x.like(x.local.unsqueeze(place), behind=x.behind + (place >= end))


@implements(Tensor.squeeze, torch.squeeze, behind=True)
def squeeze(x: SpatialTensor, dim: int) -> SpatialTensor:
    """Drop a dim of one cell that is not split."""
    return reduced(x, x.local.squeeze(unsplit(x, dim, "squeeze")), (dim,))


@implements(torch.flatten, Tensor.flatten, behind=True, apart=True)
def flatten(x: SpatialTensor, start_dim: int = 0, end_dim: int = -1) -> SpatialTensor | Tensor:
    """Flatten; if split dims are among those, gather first."""
    asked = global_shape(torch.flatten, (tuple(x.shape),), (start_dim, end_dim))
    first, end = len(x.lead), len(x.lead) + len(x.extents)
    if x.order is not None or end_dim % x.ndim < first or start_dim % x.ndim >= end:
        return reshape(x, asked)
    return gather_as(x, asked)


@implements(Tensor.view, Tensor.reshape, torch.reshape, behind=True, apart=True)
def reshape(x: SpatialTensor, *sizes: Any, shape: Sequence[int] = ()) -> SpatialTensor | Tensor:
    """Another shape; if split dims are merged, not only cut into blocks, gather first."""
    given = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    asked = global_shape(torch.reshape, (tuple(x.shape),), (given or tuple(shape),))
    if x.order is not None:
        return _merged(x, asked)
    dims, own = len(x.extents), x.local.shape[len(x.lead) : x.local.ndim - x.behind]
    for first in range(len(asked) - dims, -1, -1):
        before, after = asked[:first], asked[first + dims :]
        if asked[first : first + dims] == x.extents and math.prod(before) == math.prod(x.lead):
            return x.like(x.local.reshape(*before, *own, *after), behind=len(after))
    found = cut(x, asked)
    return _merged(x, asked) if found is None else found


def _merged(x: SpatialTensor, asked: Sequence[int]) -> SpatialTensor | Tensor:
    found = merged(x, asked)
    return gather_as(x, asked) if found is None else found


@implements(torch.unbind, Tensor.unbind)
def unbind(x: SpatialTensor, dim: int = 0) -> tuple[SpatialTensor, ...]:
    """One tensor for each place along a dim that is not split; `for sample in x` too."""
    return tuple(x.like(part) for part in x.local.unbind(unsplit(x, dim, "unbind")))
