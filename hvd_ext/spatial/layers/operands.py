"""The other operands of an operation on a shard, and the tensor that a result is a shard of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from hvd_ext.spatial.exchange.replicated import to_partitioned
from hvd_ext.spatial.tensor import SpatialTensor
from hvd_ext.spatial.unsupported import UnsupportedError, name_of


def unsplit(x: SpatialTensor, dim: int, what: str) -> int:
    """`dim` counted from the front.

    Raises:
        UnsupportedError: it is split over ranks, or there is none.
    """
    if not -x.ndim <= dim < x.ndim:
        raise UnsupportedError(f"{what} along dim {dim} of {x!r}: it has dims 0 to {x.ndim - 1}")
    place = dim % x.ndim
    first, end = len(x.lead), len(x.lead) + len(x.extents)
    if first <= place < end:
        raise UnsupportedError(
            f"{what} along dim {dim} of {x!r}: dims {first} to {end - 1} are split, the others not"
        )
    return place


def reduced(x: SpatialTensor, local: Tensor, dims: Iterable[int]) -> SpatialTensor:
    """The whole of `local`: `x` reduced over dims that are not split, kept or not."""
    kept = local.ndim == x.ndim
    gone = sum(dim % x.ndim >= len(x.lead) for dim in dims)
    return x.like(local, behind=x.behind if kept else x.behind - gone)


def same(x: SpatialTensor, local: Tensor) -> SpatialTensor:
    """The whole of `local`: `x` itself where torch returned its input."""
    return x if local is x.local else x.like(local)


def first(operands: Any) -> SpatialTensor:
    """The first partitioned tensor among some operands."""
    return next(operand for operand in operands if isinstance(operand, SpatialTensor))


def shard_of(function: Any, value: Any, x: SpatialTensor) -> Any:
    """The part of an operand for this rank's shard of `x`: its cells in the same place.

    Raises:
        UnsupportedError: it is split otherwise than `x`, or replicated and neither as large.
    """
    if isinstance(value, SpatialTensor):
        if (value.extents, value.behind) != (x.extents, x.behind) or value.grid is not x.grid:
            raise UnsupportedError(
                f"{name_of(function)} of tensors split as {x!r} and {value!r}: "
                "their split dims and their grid must be the same"
            )
        return value.local
    return aligned(value, x) if isinstance(value, Tensor) else value


def aligned(tensor: Tensor, x: SpatialTensor) -> Tensor:
    """The part of a replicated tensor that stands next to this rank's shard of `x`.

    Along split dims it is either one cell, for all ranks, or the whole extent.

    Raises:
        UnsupportedError: it is neither.
    """
    entered = to_partitioned(tensor, x.grid.space)
    for back, (extent, (begin, end)) in enumerate(
        zip(reversed(x.extents), reversed(x.box), strict=True), start=1 + x.behind
    ):
        if tensor.ndim < back or (tensor.shape[-back] == 1 and extent > 1):
            continue
        if tensor.shape[-back] != extent:
            raise UnsupportedError(
                f"a replicated tensor of shape {tuple(tensor.shape)} next to a split one of shape "
                f"{tuple(x.shape)}: along split dims it must have 1 cell or all of them"
            )
        entered = entered.narrow(-back, begin, end - begin)
    return entered
