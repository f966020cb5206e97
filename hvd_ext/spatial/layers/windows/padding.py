"""Padding and cropping at the borders of the whole sample."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from hvd_ext.spatial.exchange.assemble import layout
from hvd_ext.spatial.geometry.partition import Box, Interval, cuts
from hvd_ext.spatial.geometry.windows import Sliding
from hvd_ext.spatial.layers.gather import fetch
from hvd_ext.spatial.layers.operands import over
from hvd_ext.spatial.layers.windows.windowed import windowed
from hvd_ext.spatial.tensor import SpatialTensor, global_shape, implements
from hvd_ext.spatial.torch_internals import storage_id
from hvd_ext.spatial.unsupported import UnsupportedError


@implements(F.pad)
def pad(
    x: SpatialTensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> SpatialTensor:
    """Pad, or crop, at the borders of the whole sample.

    Args:
        x: the input.
        pad: cells before and after, last dim first.
        mode: "constant", "reflect", "replicate" or "circular".
        value: value of the padding, if it is constant.

    Raises:
        UnsupportedError: the padding is wider than its mode allows.
    """
    dims = x.ndim - len(x.lead)
    if mode != "constant":
        dims = max(dims, len(pad) // 2)
    x = over(x, dims, "pad")
    extents = global_shape(F.pad, (tuple(x.shape),), (tuple(pad), mode, value))[-dims:]
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][::-1]
    pairs = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    lead, space = pairs[: len(x.lead)], pairs[len(x.lead) :]
    if min(extents) < 1:
        raise UnsupportedError(f"pad={tuple(pad)} of extents {x.extents}: no cells are left")
    if mode == "constant":
        fill = 0.0 if value is None else value
        windows = [Sliding(1, 1, before) for before, _ in space]
        if any(map(any, lead)):
            front = [number for pair in reversed(lead) for number in pair]
            x = x.like(F.pad(x.local, [*[0] * 2 * dims, *front], "constant", fill))
        padded = windowed(x, windows, extents, _as_it_is, fill)
        # A change of the padded tensor must not change the input.
        shared = storage_id(padded.local) == storage_id(x.local)
        return padded.like(padded.local.clone()) if shared else padded
    sources = [
        _sources(mode, extent, before, after)
        for extent, (before, after) in zip(x.extents, space, strict=True)
    ]
    return _select(x, sources)


def _as_it_is(block: Tensor, outputs: Box, inputs: Box) -> Tensor:
    return block


def _sources(mode: str, extent: int, before: int, after: int) -> list[int]:
    """Return the cell that each cell of a padded dim repeats."""
    if mode == "circular" and min(before, after) < 0:
        # torch crops first, and then repeats the remaining cells.
        raise UnsupportedError(
            f"circular padding of ({before}, {after}) cells: crop first, then pad"
        )
    places = range(-before, extent + after)
    if mode == "replicate":
        return [min(max(place, 0), extent - 1) for place in places]
    if mode == "circular":
        return [place % extent for place in places]
    return [extent - 1 - abs(extent - 1 - abs(place)) for place in places]


def _select(x: SpatialTensor, sources: Sequence[Sequence[int]]) -> SpatialTensor:
    """Return the tensor whose cell j along a dim is the cell sources[j] of `x`."""
    extents = tuple(map(len, sources))
    needed = []
    for source, parts in zip(sources, x.parts, strict=True):
        bounds = cuts(len(source), parts)
        needed.append([_intervals(source[bounds[i] : bounds[i + 1]]) for i in range(parts)])
    block = fetch(x, needed)
    for back, (source, wanted, at, parts) in enumerate(
        zip(sources, needed, x.place, x.parts, strict=True)
    ):
        bounds = cuts(len(source), parts)
        held = [cell for begin, end in wanted[at] for cell in range(begin, end)]
        where = {cell: index for index, cell in enumerate(held)}
        index = [where[cell] for cell in source[bounds[at] : bounds[at + 1]]]
        if index != list(range(len(held))):
            places = torch.tensor(index, dtype=torch.int64, device=x.device)
            block = block.index_select(len(x.lead) + back, places)
    block = block.contiguous(memory_format=layout(x.local))
    return SpatialTensor(block, x.grid, extents, parts=x.parts)


def _intervals(cells: Sequence[int]) -> list[Interval]:
    """Return cells, given in any order, as ascending disjoint intervals."""
    found: list[Interval] = []
    for cell in sorted(set(cells)):
        if found and found[-1][1] == cell:
            found[-1] = (found[-1][0], cell + 1)
        else:
            found.append((cell, cell + 1))
    return found
