"""The other operands of an operation on a shard, and the tensor to which a result belongs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from hvd_ext.spatial.exchange.replicated import to_partitioned
from hvd_ext.spatial.tensor import SpatialTensor
from hvd_ext.spatial.unsupported import UnsupportedError, name_of

# For each dim of a tensor, the dim of another tensor's space that it is, if any.
Along = Sequence[int | None]


def unsplit(x: SpatialTensor, dim: int, what: str) -> int:
    """Return `dim` counted from the front.

    Raises:
        UnsupportedError: it is split over ranks, or does not exist.
    """
    if not -x.ndim <= dim < x.ndim:
        raise UnsupportedError(f"{what} along dim {dim} of {x!r}: it has dims 0 to {x.ndim - 1}")
    place = dim % x.ndim
    if place in x.split_dims:
        raise UnsupportedError(
            f"{what} along dim {dim} of {x!r}: that dim is split; use one that is not, or gather "
            "first: hvd_ext.spatial.gather(x)"
        )
    return place


def over(x: SpatialTensor, dims: int, what: str) -> SpatialTensor:
    """Return `x` with its last `dims` dims as its space.

    Raises:
        UnsupportedError: another dim is split.
    """
    if x.behind == 0 and len(x.extents) == dims:
        return x
    first = x.ndim - dims
    if x.split_dims and x.split_dims[0] < first:
        raise UnsupportedError(
            f"{what} of {x!r}: of its dims, only the last {dims} may be split over ranks, and dim "
            f"{x.split_dims[0]} is split: permute it first"
        )
    at = first - len(x.lead)
    parts = (*[1] * -at, *x.parts[max(at, 0) :], *[1] * x.behind)
    return x.same_memory(SpatialTensor(x.local, x.grid, x.shape[first:], 0, parts))


def along(x: SpatialTensor) -> list[int | None]:
    """Return, for each dim of `x`, the dim of its space that it is."""
    return [*[None] * len(x.lead), *range(len(x.extents)), *[None] * x.behind]


def placed(x: SpatialTensor, local: Tensor, dims: Along) -> SpatialTensor | Tensor:
    """Return the tensor of the shard `local`, made from `x` by moving, adding or dropping dims.

    Args:
        x: the original tensor.
        local: the shard.
        dims: for each of the shard's dims, the dim of the space of `x` that it is; it must have all
            split dims, in their order.

    Returns:
        The tensor; an ordinary one if only one rank has the space and none of its dims is left.
    """
    split = [dim - len(x.lead) for dim in x.split_dims]
    kept = [at for at, dim in enumerate(dims) if dim is not None]
    if not kept:
        return local
    begin, end = (dims.index(split[0]), dims.index(split[-1])) if split else (kept[-1], kept[-1])
    end += 1
    # Whole dims of the space stay part of it if they are next to the split ones.
    while begin > 0 and dims[begin - 1] is not None:
        begin -= 1
    while end < len(dims) and dims[end] is not None:
        end += 1
    parts = tuple(1 if dim is None else x.parts[dim] for dim in dims[begin:end])
    extents = (
        x.extents[dim] if dim in split else size
        for dim, size in zip(dims[begin:end], local.shape[begin:end], strict=True)
    )
    return x.same_memory(SpatialTensor(local, x.grid, extents, len(dims) - end, parts))


def reduced(x: SpatialTensor, local: Tensor, dims: Iterable[int]) -> SpatialTensor | Tensor:
    """Return the tensor of the shard `local`: `x` reduced over unsplit dims, kept or not."""
    if local.ndim == x.ndim:
        return x.like(local)
    gone = {dim % x.ndim for dim in dims}
    return placed(x, local, [dim for at, dim in enumerate(along(x)) if at not in gone])


def same(x: SpatialTensor, local: Tensor) -> SpatialTensor:
    """Return the tensor of the shard `local`; `x` itself if torch returned its input."""
    return x if local is x.local else x.like(local)


def first(operands: Any) -> SpatialTensor:
    """Return the first partitioned tensor among some operands."""
    return next(operand for operand in operands if isinstance(operand, SpatialTensor))


def shard_of(function: Any, value: Any, x: SpatialTensor) -> Any:
    """Return the part of an operand for this rank's shard of `x`: its cells in the same place.

    Raises:
        UnsupportedError: it is not split like `x`, or is replicated and of another size.
    """
    if isinstance(value, SpatialTensor):
        alike = (value.extents, value.behind, value.parts) == (x.extents, x.behind, x.parts)
        alike = alike or _split_from_end(value) == _split_from_end(x)
        if not alike or value.grid is not x.grid:
            raise UnsupportedError(
                f"{name_of(function)} of tensors split as {x!r} and {value!r}: "
                "their split dims and their grid must be the same"
            )
        return value.local
    return aligned(value, x) if isinstance(value, Tensor) else value


def _split_from_end(x: SpatialTensor) -> list[tuple[int, int]]:
    """Return place (from the end) and extent of each split dim, as broadcasting pairs them."""
    return [(x.ndim - dim, x.extents[dim - len(x.lead)]) for dim in x.split_dims]


def aligned(tensor: Tensor, x: SpatialTensor) -> Tensor:
    """Return the part of a replicated tensor that belongs to this rank's shard of `x`.

    Along split dims the tensor has either one cell, for all ranks, or the whole extent.

    Raises:
        UnsupportedError: it has neither.
    """
    entered = to_partitioned(tensor, x.grid.space)
    for dim in x.split_dims:
        back = x.ndim - dim
        extent, (begin, end) = x.extents[dim - len(x.lead)], x.box[dim - len(x.lead)]
        if tensor.ndim < back or (tensor.shape[-back] == 1 and extent > 1):
            continue
        if tensor.shape[-back] != extent:
            raise UnsupportedError(
                f"a replicated tensor of shape {tuple(tensor.shape)} next to a split one of shape "
                f"{tuple(x.shape)}: along split dims it must have 1 cell or all of them"
            )
        entered = entered.narrow(-back, begin, end - begin)
    return entered
