"""Shapes: joining, cutting, indexing and flattening, along dims that are not split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hvd_ext.spatial.layers.gather import as_view, gather
from hvd_ext.spatial.tensor import SpatialTensor, global_shape, implements
from hvd_ext.spatial.unsupported import UnsupportedError, name_of


def unsplit(x: SpatialTensor, dim: int, what: str) -> int:
    """`dim` counted from the front.

    Raises:
        UnsupportedError: it is split over ranks, or there is none.
    """
    if not -x.ndim <= dim < x.ndim:
        raise UnsupportedError(f"{what} along dim {dim} of {x!r}: it has dims 0 to {x.ndim - 1}")
    place = dim % x.ndim
    if place >= len(x.lead):
        raise UnsupportedError(
            f"{what} along dim {dim} of {x!r}: that dim is split; dims 0 to "
            f"{len(x.lead) - 1} are not"
        )
    return place


@implements(torch.cat, torch.concat, torch.concatenate, any_operand=True)
def cat(tensors: Sequence[SpatialTensor], dim: int = 0) -> SpatialTensor:
    """Concatenate along a dim that is not split: skip connections."""
    one = next(tensor for tensor in tensors if isinstance(tensor, SpatialTensor))
    for tensor in tensors:
        if (
            not isinstance(tensor, SpatialTensor)
            or tensor.extents != one.extents
            or tensor.grid is not one.grid
        ):
            raise UnsupportedError(
                f"cat of tensors of shapes {[tuple(t.shape) for t in tensors]}: all must be "
                "split, over the same extents and the same grid"
            )
    return one.like(torch.cat([t.local for t in tensors], unsplit(one, dim, "cat")))


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


for _function in (torch.chunk, Tensor.chunk, torch.split, Tensor.split, torch.tensor_split):
    implements(_function)(_splitter(_function))


@implements(Tensor.unsqueeze, torch.unsqueeze)
def unsqueeze(x: SpatialTensor, dim: int) -> SpatialTensor:
    """A new dim before those that are split."""
    place = dim if dim >= 0 else dim + x.ndim + 1
    if not 0 <= place <= len(x.lead):
        raise UnsupportedError(
            f"unsqueeze at dim {dim} of {x!r}: there is room at 0 to {len(x.lead)}, before the "
            "dims that are split"
        )
    return x.like(x.local.unsqueeze(place))


@implements(Tensor.squeeze, torch.squeeze)
def squeeze(x: SpatialTensor, dim: int) -> SpatialTensor:
    """Drop a dim of one cell that is not split."""
    return x.like(x.local.squeeze(unsplit(x, dim, "squeeze")))


@implements(Tensor.__getitem__)
def getitem(x: SpatialTensor, index: Any) -> SpatialTensor:
    """Index dims that are not split, by numbers and slices."""
    given = index if isinstance(index, tuple) else (index,)
    if Ellipsis in given:
        at = given.index(Ellipsis)
        given = (*given[:at], *(slice(None),) * (x.ndim - len(given) + 1), *given[at + 1 :])
    rest = given[len(x.lead) :]
    if (
        len(given) > x.ndim
        or not all(isinstance(item, int | slice) for item in given)
        or any(item != slice(None) for item in rest)
    ):
        raise UnsupportedError(
            f"x[{index}] of {x!r}: only numbers and slices, and only of the first "
            f"{len(x.lead)} dims; the others are split"
        )
    return x.like(x.local[given[: len(x.lead)]])


@implements(torch.flatten, Tensor.flatten)
def flatten(x: SpatialTensor, start_dim: int = 0, end_dim: int = -1) -> SpatialTensor | Tensor:
    """Flatten; if split dims are among those, gather first."""
    if end_dim % x.ndim < len(x.lead):
        return x.like(x.local.flatten(start_dim, end_dim))
    return as_view(x, gather(x).flatten(start_dim, end_dim))


@implements(Tensor.view, Tensor.reshape, torch.reshape)
def reshape(x: SpatialTensor, *sizes: Any, shape: Sequence[int] = ()) -> SpatialTensor | Tensor:
    """Another shape; if split dims do not stay as they are, gather first."""
    given = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    asked = global_shape(torch.reshape, (tuple(x.shape),), (given or tuple(shape),))
    dims = len(x.extents)
    if len(asked) > dims and asked[len(asked) - dims :] == x.extents:
        return x.like(x.local.reshape(*asked[: len(asked) - dims], *x.local.shape[-dims:]))
    return as_view(x, gather(x).reshape(asked))


@implements(torch.unbind, Tensor.unbind)
def unbind(x: SpatialTensor, dim: int = 0) -> tuple[SpatialTensor, ...]:
    """One tensor for each place along a dim that is not split; `for sample in x` too."""
    return tuple(x.like(part) for part in x.local.unbind(unsplit(x, dim, "unbind")))
