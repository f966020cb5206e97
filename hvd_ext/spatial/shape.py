"""Operations on dims that are not split, sums over those that are, and padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hvd_ext.spatial.geometry import Sliding
from hvd_ext.spatial.halo import leave, sum_over_space
from hvd_ext.spatial.partition import Box, Interval, cuts
from hvd_ext.spatial.refusal import Refusal
from hvd_ext.spatial.replicate import gather
from hvd_ext.spatial.tensor import SpatialTensor, global_shape, implements, name_of
from hvd_ext.spatial.windowed import fetch, windowed


def unsplit(x: SpatialTensor, dim: int, what: str) -> int:
    """`dim` counted from the front.

    Raises:
        Refusal: it is split over ranks, or there is none.
    """
    if not -x.ndim <= dim < x.ndim:
        raise Refusal(f"{what} along dim {dim} of {x!r}: it has dims 0 to {x.ndim - 1}")
    place = dim % x.ndim
    if place >= len(x.lead):
        raise Refusal(
            f"{what} along dim {dim} of {x!r}: that dim is split; dims 0 to "
            f"{len(x.lead) - 1} are not"
        )
    return place


@implements(torch.cat, torch.concat, torch.concatenate)
def cat(tensors: Sequence[SpatialTensor], dim: int = 0) -> SpatialTensor:
    """Concatenate along a dim that is not split: skip connections."""
    one = next(tensor for tensor in tensors if isinstance(tensor, SpatialTensor))
    for tensor in tensors:
        if (
            not isinstance(tensor, SpatialTensor)
            or tensor.extents != one.extents
            or tensor.grid is not one.grid
        ):
            raise Refusal(
                f"cat of tensors of shapes {[tuple(t.shape) for t in tensors]}: all must be "
                "split, over the same extents and the same grid"
            )
    return one.like(torch.cat([t.local for t in tensors], unsplit(one, dim, "cat")))


@implements(torch.stack)
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
        raise Refusal(
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
        raise Refusal(
            f"x[{index}] of {x!r}: only numbers and slices, and only of the first "
            f"{len(x.lead)} dims; the others are split"
        )
    return x.like(x.local[given[: len(x.lead)]])


@implements(torch.flatten, Tensor.flatten)
def flatten(x: SpatialTensor, start_dim: int = 0, end_dim: int = -1) -> SpatialTensor | Tensor:
    """Flatten; if split dims are among those, gather first."""
    if end_dim % x.ndim < len(x.lead):
        return x.like(x.local.flatten(start_dim, end_dim))
    return gather(x).flatten(start_dim, end_dim)


@implements(Tensor.view, Tensor.reshape, torch.reshape)
def reshape(x: SpatialTensor, *sizes: Any, shape: Sequence[int] = ()) -> SpatialTensor | Tensor:
    """Another shape; if split dims do not stay as they are, gather first."""
    given = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    asked = global_shape(torch.reshape, (tuple(x.shape),), (given or tuple(shape),))
    dims = len(x.extents)
    if len(asked) > dims and asked[len(asked) - dims :] == x.extents:
        return x.like(x.local.reshape(*asked[: len(asked) - dims], *x.local.shape[-dims:]))
    return gather(x).reshape(asked)


def _reduction(function: Any, mean: bool) -> Any:
    def handler(
        x: SpatialTensor,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: torch.dtype | None = None,
    ) -> SpatialTensor | Tensor:
        asked = (dim,) if isinstance(dim, int) else tuple(dim or range(x.ndim))
        # Whatever the reduction is: torch's means take seconds to load on the meta device.
        global_shape(torch.sum, (tuple(x.shape),), (asked, keepdim))
        over = sorted(place % x.ndim for place in asked)
        split = [place for place in over if place >= len(x.lead)]
        made = dtype or x.dtype
        if mean and not (made.is_floating_point or made.is_complex):
            raise Refusal(f"mean of {x!r} in {made}: ask for a floating-point dtype")
        if not split:
            return x.like(function(x.local, over, keepdim, dtype=dtype))
        if len(split) < len(x.extents):
            raise Refusal(
                f"{'mean' if mean else 'sum'} over dims {over} of {x!r}: over all split dims or "
                "none of them"
            )
        local = leave(x.local, x.grid.space)
        if not mean:
            return sum_over_space(local.sum(over, keepdim, dtype=dtype), x.grid.space)
        # The sum of many 16-bit numbers is none; their mean is.
        wide = torch.promote_types(made, torch.float32)
        total = sum_over_space(local.sum(over, keepdim, dtype=wide), x.grid.space)
        return (total / math.prod(x.shape[place] for place in over)).to(made)

    return handler


implements(torch.sum, Tensor.sum)(_reduction(torch.sum, mean=False))
implements(torch.mean, Tensor.mean)(_reduction(torch.mean, mean=True))


@implements(F.pad)
def pad(
    x: SpatialTensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> SpatialTensor:
    """Pad, or crop, at the borders of the whole sample.

    Args:
        x: the input.
        pad: cells before and after, last dim first.
        mode: "constant", "reflect", "replicate" or "circular".
        value: of a constant.

    Raises:
        Refusal: the padding is wider than its mode allows.
    """
    dims = len(x.extents)
    extents = global_shape(F.pad, (tuple(x.shape),), (tuple(pad), mode, value))[-dims:]
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][::-1]
    pairs = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    lead, split = pairs[: len(x.lead)], pairs[len(x.lead) :]
    if min(extents) < 1:
        raise Refusal(f"pad={tuple(pad)} of extents {x.extents}: nothing is left")
    if mode == "constant":
        fill = 0.0 if value is None else value
        windows = [Sliding(1, 1, before) for before, _ in split]
        if any(map(any, lead)):
            front = [number for pair in reversed(lead) for number in pair]
            x = x.like(F.pad(x.local, [*[0] * 2 * dims, *front], "constant", fill))
        padded = windowed(x, windows, extents, _as_it_is, fill)
        # Nobody expects to change the input by changing what was padded.
        shared = padded.local.untyped_storage()._cdata == x.local.untyped_storage()._cdata
        return padded.like(padded.local.clone()) if shared else padded
    if any(map(any, lead)):
        raise Refusal(f"pad={tuple(pad)}, mode={mode!r}: only split dims can be padded like this")
    sources = [
        _sources(mode, extent, before, after)
        for extent, (before, after) in zip(x.extents, split, strict=True)
    ]
    return _select(x, sources)


def _as_it_is(block: Tensor, outputs: Box, inputs: Box) -> Tensor:
    return block


def _sources(mode: str, extent: int, before: int, after: int) -> list[int]:
    """The cell that each cell of a padded dim repeats."""
    if mode == "circular" and min(before, after) < 0:
        # torch crops, and then repeats what is left.
        raise Refusal(f"circular padding of ({before}, {after}) cells: crop first, then pad")
    places = range(-before, extent + after)
    if mode == "replicate":
        return [min(max(place, 0), extent - 1) for place in places]
    if mode == "circular":
        return [place % extent for place in places]
    return [extent - 1 - abs(extent - 1 - abs(place)) for place in places]


def _select(x: SpatialTensor, sources: Sequence[Sequence[int]]) -> SpatialTensor:
    """The tensor whose cell j along a dim is the cell sources[j] of `x`."""
    extents = tuple(map(len, sources))
    here = x.grid.coordinates(len(extents))
    needed = []
    for source, parts in zip(sources, x.parts, strict=True):
        bounds = cuts(len(source), parts)
        needed.append([_intervals(source[bounds[i] : bounds[i + 1]]) for i in range(parts)])
    block = fetch(x, needed)
    for back, (source, wanted, at, parts) in enumerate(
        zip(sources, needed, here, x.parts, strict=True)
    ):
        bounds = cuts(len(source), parts)
        held = [cell for begin, end in wanted[at] for cell in range(begin, end)]
        where = {cell: index for index, cell in enumerate(held)}
        index = [where[cell] for cell in source[bounds[at] : bounds[at + 1]]]
        if index != list(range(len(held))):
            places = torch.tensor(index, dtype=torch.int64, device=x.device)
            block = block.index_select(len(x.lead) + back, places)
    return SpatialTensor(block, x.grid, extents)


def _intervals(cells: Sequence[int]) -> list[Interval]:
    """Cells, in any order, as ascending disjoint intervals."""
    found: list[Interval] = []
    for cell in sorted(set(cells)):
        if found and found[-1][1] == cell:
            found[-1] = (found[-1][0], cell + 1)
        else:
            found.append((cell, cell + 1))
    return found
