"""Indexing: by what Python has along dims that are not split, by slices along those that are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hvd_ext.spatial.geometry.partition import Box
from hvd_ext.spatial.geometry.windows import Sliding
from hvd_ext.spatial.layers.windows.windowed import windowed
from hvd_ext.spatial.tensor import SpatialTensor, implements
from hvd_ext.spatial.unsupported import UnsupportedError


@implements(Tensor.__getitem__)
def getitem(x: SpatialTensor, index: Any) -> SpatialTensor:
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
    # Where the split dims begin in what is given: None takes no dim.
    places = [place for place, item in enumerate(given) if item is not None]
    split = places[len(x.lead)] if len(places) == x.ndim else len(given)
    lead, rest = given[:split], given[split:]
    lists = [item for item in lead if isinstance(item, list | Tensor)]
    if (
        len(dots) > 1
        or len(places) != x.ndim
        or len(lists) > 1
        or (lists and any(isinstance(item, int) for item in lead))
        or not all(map(_is_index, lead))
        or not all(isinstance(item, slice) for item in rest)
    ):
        raise UnsupportedError(
            f"x[{index}] of {x!r}: numbers, slices, None and one list along the first "
            f"{len(x.lead)} dims, slices alone along the others, which are split"
        )
    ranges = [range(extent)[item] for extent, item in zip(x.extents, rest, strict=True)]
    part = x.like(x.local[tuple(lead)]) if lead else x
    if all(len(along) == extent for along, extent in zip(ranges, x.extents, strict=True)):
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
    """Every so many-th cell along split dims."""
    if any(len(along) == 0 or along.step < 1 for along in ranges):
        raise UnsupportedError(f"a slice of {x!r} to {list(ranges)}: no cells are left")
    windows = [Sliding(1, along.step, -along.start) for along in ranges]
    steps: tuple[Any, ...] = (..., *(slice(None, None, along.step) for along in ranges))

    def operation(block: Tensor, outputs: Box, inputs: Box) -> Tensor:
        return block[steps]

    made = windowed(x, windows, tuple(map(len, ranges)), operation)
    # On some ranks it may be a view, on others not: a copy on all of them.
    made = made.like(made.local.clone())
    x.copies.add(made, made.local)
    return made


@implements(Tensor.narrow)
def narrow(x: SpatialTensor, dim: int, start: int, length: int) -> SpatialTensor:
    index = [slice(None)] * x.ndim
    index[dim] = slice(start, start + length)
    return getitem(x, tuple(index))
