"""Reordering and repeating dims: split dims keep their order, wherever they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hvd_ext.spatial.layers.shaping.blocks import permuted
from hvd_ext.spatial.layers.shaping.indexing import reshape
from hvd_ext.spatial.tensor import SpatialTensor, global_shape, implements
from hvd_ext.spatial.unsupported import UnsupportedError, name_of


def _frozen(values: Any) -> tuple[Any, ...]:
    return tuple(tuple(value) if isinstance(value, list) else value for value in values)


def _reordering(function: Any) -> Any:
    def handler(x: SpatialTensor, *args: Any, **options: Any) -> SpatialTensor:
        given = _frozen((*args, *options.values()))
        # A tensor whose sizes are the dims' numbers: its shape after torch's operation is the
        # order.
        numbered = global_shape(function, (tuple(range(1, x.ndim + 1)),), given)
        order = [number - 1 for number in numbered]
        split = [dim for dim in order if dim in x.split_dims]
        if split != sorted(split):
            raise UnsupportedError(
                f"{name_of(function)}{given} of {x!r}: split dims stay in their order"
            )
        return permuted(x, order)

    return handler


_ORDERS: tuple[Any, ...] = (
    *(torch.permute, Tensor.permute, torch.transpose, Tensor.transpose),
    *(torch.movedim, Tensor.movedim, torch.moveaxis, Tensor.moveaxis),
    *(torch.swapaxes, Tensor.swapaxes, torch.swapdims, Tensor.swapdims),
)
for _function in _ORDERS:
    implements(_function)(_reordering(_function))


def _repeating(function: Any) -> Any:
    def handler(x: SpatialTensor, *args: Any, **options: Any) -> SpatialTensor:
        given = _frozen((*args, *options.values()))
        asked = given[0] if len(given) == 1 and isinstance(given[0], tuple) else given
        shape = global_shape(function, (tuple(x.shape),), (asked,))
        asked = (*(1,) * (x.ndim - len(asked)), *asked)
        own = list(asked)
        for dim in x.split_dims:
            back = dim - x.ndim
            if shape[back] != x.shape[dim]:
                raise UnsupportedError(
                    f"{name_of(function)}{asked} of {x!r}: split dims are neither expanded nor "
                    "repeated"
                )
            own[back] = x.local.shape[dim] if function is Tensor.expand else 1
        return x.like(function(x.local, own))

    return handler


_REPEATS: tuple[Any, ...] = (Tensor.expand, Tensor.repeat, Tensor.tile, torch.tile)
for _function in _REPEATS:
    implements(_function)(_repeating(_function))


@implements(Tensor.expand_as, any_operand=True)
def expand_as(x: SpatialTensor | Tensor, other: SpatialTensor | Tensor) -> SpatialTensor | Tensor:
    """Expand to the size of another tensor; a whole tensor stays whole."""
    expanded: SpatialTensor | Tensor = x.expand(other.shape)
    return expanded


@implements(Tensor.view_as, Tensor.reshape_as, any_operand=True)
def view_as(x: SpatialTensor | Tensor, other: SpatialTensor | Tensor) -> SpatialTensor | Tensor:
    """Return it with another tensor's shape."""
    return reshape(x, *other.shape) if isinstance(x, SpatialTensor) else x.view(other.shape)
