"""Indexing: by any index along dims that are not split, only by slices along split ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hvd_ext.spatial.geometry.partition import Box
from hvd_ext.spatial.geometry.windows import Sliding
from hvd_ext.spatial.layers.operands import along, over, placed
from hvd_ext.spatial.layers.windows.windowed import windowed
from hvd_ext.spatial.tensor import SpatialTensor, implements
from hvd_ext.spatial.unsupported import UnsupportedError


@implements(Tensor.__getitem__)
def getitem(x: SpatialTensor, index: Any) -> SpatialTensor | Tensor:
    """Index dims that are not split by numbers, slices, None and a list; split ones by slices.

    Raises:
        UnsupportedError: any other index, or no cell is left.
    """
    given = list(index) if isinstance(index, tuple) else [index]
    taken = sum(item is not None and item is not Ellipsis for item in given)
    dots = [place for place, item in enumerate(given) if item is Ellipsis]
    if dots:
        given[dots[0] : dots[0] + 1] = [slice(None)] * (x.ndim - taken)
    else:
        given += [slice(None)] * (x.ndim - taken)
    # The index of each dim; None adds a dim.
    places = [place for place, item in enumerate(given) if item is not None]
    split = [places[dim] for dim in x.split_dims] if len(places) == x.ndim else []
    lists = [item for item in given if isinstance(item, list | Tensor)]
    if (
        len(dots) > 1
        or len(places) != x.ndim
        or len(lists) > 1
        or (lists and any(isinstance(item, int) for item in given))
        or not all(map(_is_index, given))
        or not all(isinstance(given[place], slice) for place in split)
    ):
        raise UnsupportedError(
            f"x[{index}] of {x!r}: only slices along the dims that are split "
            f"({', '.join(map(str, x.split_dims))}); numbers, slices, None and one list along "
            "the others"
        )
    dims = along(x)
    slices = {dims[dim]: given[place] for dim, place in zip(x.split_dims, split, strict=True)}
    own = [slice(None) if place in split else item for place, item in enumerate(given)]
    left = iter(dims)
    of = [None if item is None else next(left) for item in given]
    kept = [dim for dim, item in zip(of, given, strict=True) if not isinstance(item, int)]
    whole = all(item == slice(None) for item in own)
    part = x if whole else placed(x, x.local[tuple(own)], kept)
    if not isinstance(part, SpatialTensor):
        return part
    ranges = [range(extent) for extent in part.extents]
    for dim, item in zip(part.split_dims, slices.values(), strict=True):
        ranges[dim - len(part.lead)] = range(part.shape[dim])[item]
    if all(len(one) == extent for one, extent in zip(ranges, part.extents, strict=True)):
        return part
    return _sliced(part, ranges)


def _is_index(item: Any) -> bool:
    if isinstance(item, Tensor):
        return (
            not isinstance(item, SpatialTensor) and item.ndim == 1 and not item.is_floating_point()
        )
    if isinstance(item, list):
        return all(isinstance(number, int) for number in item)
    return item is None or (isinstance(item, int | slice) and not isinstance(item, bool))


def _sliced(x: SpatialTensor, ranges: Sequence[range]) -> SpatialTensor:
    """Return every n-th cell along the dims of the space."""
    if any(len(one) == 0 or one.step < 1 for one in ranges):
        raise UnsupportedError(f"a slice of {x!r} to {list(ranges)}: no cells are left")
    ranges = [*ranges, *map(range, x.trail)]
    x = over(x, len(ranges), "a slice")
    windows = [Sliding(1, one.step, -one.start) for one in ranges]
    steps: tuple[Any, ...] = (..., *(slice(None, None, one.step) for one in ranges))

    def operation(block: Tensor, outputs: Box, inputs: Box) -> Tensor:
        return block[steps]

    made = windowed(x, windows, tuple(map(len, ranges)), operation)
    # On some ranks it may be a view, on others not: a copy on all of them.
    made = made.like(made.local.clone())
    x.copies.add(made, made.local)
    return made


@implements(Tensor.narrow, torch.narrow)
def narrow(x: SpatialTensor, dim: int, start: int, length: int) -> SpatialTensor | Tensor:
    index = [slice(None)] * x.ndim
    index[dim] = slice(start, start + length)
    return getitem(x, tuple(index))
