"""Adaptive pooling, with a window for each output; pooling to a single cell is global.

Global pooling needs no halo, only a sum (or maximum) over the ranks, and its result is small: an
ordinary, replicated tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hvd_ext.spatial.dtypes import accumulate_dtype
from hvd_ext.spatial.exchange.replicated import sum_over_space, to_replicated
from hvd_ext.spatial.geometry.partition import Box
from hvd_ext.spatial.geometry.windows import Explicit
from hvd_ext.spatial.layers.gather import gather
from hvd_ext.spatial.layers.windows.conv import batched
from hvd_ext.spatial.layers.windows.windowed import windowed
from hvd_ext.spatial.tensor import SpatialTensor, implements
from hvd_ext.spatial.unsupported import UnsupportedError

AVERAGES = {
    1: (torch.adaptive_avg_pool1d,),
    2: (F.adaptive_avg_pool2d,),
    3: (F.adaptive_avg_pool3d,),
}
MAXIMA = {
    1: (F.adaptive_max_pool1d, torch.adaptive_max_pool1d),
    2: (F.adaptive_max_pool2d,),
    3: (F.adaptive_max_pool3d,),
}
WITH_INDICES = (
    F.adaptive_max_pool1d_with_indices,
    F.adaptive_max_pool2d_with_indices,
    F.adaptive_max_pool3d_with_indices,
)


def _handler(dims: int, largest: bool) -> Any:
    def handler(
        x: SpatialTensor,
        output_size: int | Sequence[int | None],
        return_indices: bool = False,
    ) -> SpatialTensor | Tensor:
        if return_indices:
            raise UnsupportedError(
                f"adaptive_max_pool{dims}d with return_indices=True is not supported"
            )
        return adaptive_pool(dims, x, output_size, largest)

    return handler


for _dims in (1, 2, 3):
    implements(*AVERAGES[_dims])(_handler(_dims, largest=False))
    implements(*MAXIMA[_dims])(_handler(_dims, largest=True))


@implements(*WITH_INDICES)
def refuse_indices(x: SpatialTensor, *args: Any, **kwargs: Any) -> None:
    """Refuse return_indices, which would need every rank's cells."""
    raise UnsupportedError(
        "adaptive max pooling with return_indices=True is not supported: leave it out"
    )


def adaptive_pool(
    dims: int, x: SpatialTensor, output_size: int | Sequence[int | None], largest: bool
) -> SpatialTensor | Tensor:
    """Pool to a given number of cells per dim.

    Args:
        dims: 1, 2 or 3.
        x: (N, C, *extents).
        output_size: cells per dim; None keeps the extent.
        largest: the maximum of each window, else the average.

    Returns:
        A partitioned tensor; an ordinary, replicated one of shape (N, C, 1, ...) if one
        cell is asked for.

    Raises:
        UnsupportedError: the input has no such dims, or no cell.
    """
    name = f"adaptive_{'max' if largest else 'avg'}_pool{dims}d"
    x = batched(x, dims, name)
    asked = (output_size,) * dims if isinstance(output_size, int) else tuple(output_size)
    asked = asked * dims if len(asked) == 1 else asked
    if len(asked) != dims or 0 in x.extents or any(size is not None and size < 1 for size in asked):
        raise UnsupportedError(
            f"{name} of extents {x.extents} to {asked}: use {dims} sizes of at least 1"
        )
    sizes = tuple(
        extent if size is None else size for extent, size in zip(x.extents, asked, strict=True)
    )
    if all(size == 1 for size in sizes):
        return global_maximum(x) if largest else global_average(x)
    windows = [
        Explicit(
            tuple(extent * cell // size for cell in range(size)),
            tuple(-(-extent * (cell + 1) // size) for cell in range(size)),
        )
        for extent, size in zip(x.extents, sizes, strict=True)
    ]

    def operation(block: Tensor, outputs: Box, inputs: Box) -> Tensor:
        # A window is a box, so pooling along one dim after the other pools the window. The last dim
        # comes first, so that of equal maxima the first one in the window wins.
        along = list(enumerate(zip(windows, outputs, inputs, strict=True), start=2))
        for dim, (window, (begin, end), (first, _)) in reversed(along):
            cells = []
            for cell in range(begin, end):
                low, high = window.begins[cell], window.ends[cell]
                part = block.narrow(dim, low - first, high - low)
                cells.append(part.max(dim).values if largest else part.mean(dim))
            block = torch.stack(cells, dim)
        return block

    return windowed(x, windows, sizes, operation)


def global_average(x: SpatialTensor) -> Tensor:
    """Return the mean over all cells: (N, C, 1, ...), replicated."""
    dims = len(x.extents)
    wide = accumulate_dtype(x.dtype)
    own = to_replicated(x.local, x.grid.space).sum(tuple(range(-dims, 0)), keepdim=True, dtype=wide)
    return (sum_over_space(own, x.grid.space) / math.prod(x.extents)).to(x.dtype)


def global_maximum(x: SpatialTensor) -> Tensor:
    """Return the maximum over all cells: (N, C, 1, ...), replicated.

    The first of equal maxima, in the order of the whole, gets the gradient, as in torch.
    """
    flat = x.local.flatten(len(x.lead))
    if flat.shape[-1] == 0:
        # Depends on the shard, and never wins.
        value = flat.sum(-1, keepdim=True) - math.inf
        place = torch.full(value.shape, math.prod(x.extents), device=flat.device)
    else:
        value, place = flat.max(-1, keepdim=True)
        place = _first_global(x, flat, value)
    # One cell of each rank: a partitioned tensor that has a cell for each rank.
    shape = (*x.lead, *(1 for _ in x.extents))
    values, places = (
        gather(SpatialTensor(own.view(shape), x.grid, x.parts, parts=x.parts)).flatten(len(x.lead))
        for own in (value, place)
    )
    best = values.amax(-1, keepdim=True)
    # A NaN is the maximum, and equals nothing.
    far = torch.where((values == best) | values.isnan(), places, torch.iinfo(places.dtype).max)
    return values.gather(-1, far.argmin(-1, keepdim=True)).view(shape)


def _first_global(x: SpatialTensor, flat: Tensor, value: Tensor) -> Tensor:
    """Return the first place of the maximum in the whole, as a flat index."""
    first = (flat == value).to(torch.uint8).argmax(-1, keepdim=True)
    total, scale = torch.zeros_like(first), 1
    for (begin, end), extent in reversed(list(zip(x.box, x.extents, strict=True))):
        total += (first % (end - begin) + begin) * scale
        first = first // (end - begin)
        scale *= extent
    return total
