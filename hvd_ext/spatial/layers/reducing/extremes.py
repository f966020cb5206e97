"""The largest and the smallest cell of a whole sample, and where it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hvd_ext.spatial.exchange.replicated import by_rank, sum_over_space, to_replicated
from hvd_ext.spatial.tensor import SpatialTensor


class _Valued(Function):
    """(value, carrier) -> value, with the carrier's gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, carrier: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return (None, gradient)


def extreme(x: SpatialTensor, dims: Sequence[int], keepdim: bool, largest: bool) -> Tensor:
    """Reduce over `dims`, all split ones included; equal cells share the gradient, as in torch."""
    value, _ = _found(x, dims, largest)
    picked = (x.local == value) | (x.local.isnan() & value.isnan())
    return _carrying(x, dims, keepdim, value, picked)


def extreme_at(
    x: SpatialTensor, dims: Sequence[int], keepdim: bool, largest: bool
) -> tuple[Tensor, Tensor]:
    """Return the value and the place of the first such cell, which gets the whole gradient.

    Places count through the `dims` of the whole, row-major.
    """
    value, place = _found(x, dims, largest)
    places = _places(x, dims)
    dropped = place if keepdim else place.squeeze(tuple(dims))
    return _carrying(x, dims, keepdim, value, places == place), dropped


def _carrying(
    x: SpatialTensor, dims: Sequence[int], keepdim: bool, value: Tensor, picked: Tensor
) -> Tensor:
    """Return `value` (dims kept); its gradient goes to the picked cells, in equal shares."""
    dropped = value if keepdim else value.squeeze(tuple(dims))
    if not (x.requires_grad and torch.is_grad_enabled()):
        return dropped
    space, over = x.grid.space, tuple(dims)
    count = sum_over_space(picked.sum(over, keepdim=True), space)
    share = torch.where(picked, x.local / count, 0).sum(over, keepdim=keepdim)
    valued: Tensor = _Valued.apply(dropped, sum_over_space(to_replicated(share, space), space))
    return valued


def _sizes(x: SpatialTensor, dims: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return, for each of `dims`, the begin of this rank's part and the extent of the whole."""
    begins = {len(x.lead) + at: begin for at, (begin, _) in enumerate(x.box)}
    return [begins.get(dim, 0) for dim in dims], [x.shape[dim] for dim in dims]


def _places(x: SpatialTensor, dims: Sequence[int]) -> Tensor:
    """Return the place of each cell of the shard in `dims` of the whole; size 1 elsewhere."""
    places = torch.zeros((1,) * x.ndim, dtype=torch.int64, device=x.device)
    for dim, begin, size in zip(dims, *_sizes(x, dims), strict=True):
        count = x.local.shape[dim]
        along = torch.arange(begin, begin + count, device=x.device)
        places = places * size + along.view([-1 if at == dim else 1 for at in range(x.ndim)])
    return places


def _found(x: SpatialTensor, dims: Sequence[int], largest: bool) -> tuple[Tensor, Tensor]:
    """Return value and place, with `dims` kept; the same on every rank."""
    local, places = x.local.detach(), _places(x, dims)
    cells = local.to(torch.uint8) if local.dtype == torch.bool else local
    ends = list(range(-len(dims), 0))
    flat = cells.movedim(tuple(dims), tuple(ends)).flatten(-len(dims))
    numbers = places.expand(local.shape).movedim(tuple(dims), tuple(ends)).flatten(-len(dims))
    pick = torch.argmax if largest else torch.argmin
    if flat.shape[-1]:
        at = pick(flat, -1, keepdim=True)
        value, place = flat.gather(-1, at), numbers.gather(-1, at)
    else:
        # A value that loses to any other; among equals, the first place wins.
        limits = torch.finfo if cells.is_floating_point() else torch.iinfo
        least, most = limits(cells.dtype).min, limits(cells.dtype).max
        fill: float = least if largest else most
        if cells.is_floating_point():
            fill = float("-inf") if largest else float("inf")
        value = flat.new_full((*flat.shape[:-1], 1), fill)
        place = numbers.new_full(value.shape, torch.iinfo(torch.int64).max)
    values, numbered = by_rank(value, x.grid.space), by_rank(place, x.grid.space)
    order = numbered.argsort(0)
    values, numbered = values.gather(0, order), numbered.gather(0, order)
    winner = pick(values, 0, keepdim=True)
    shape = [1 if dim in dims else size for dim, size in enumerate(local.shape)]
    return (
        values.gather(0, winner).reshape(shape).to(local.dtype),
        numbered.gather(0, winner).reshape(shape),
    )
