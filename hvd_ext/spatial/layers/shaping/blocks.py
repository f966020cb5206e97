"""Views that cut or merge split dims: pixel shuffles, patches, windows of user code.

`x.view(n, c, h, r, w, r)` of split (n, c, h r, w r) is split over h and w again: each rank
fetches the cells of the blocks that it owns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hvd_ext.spatial.geometry.partition import Box
from hvd_ext.spatial.geometry.windows import Explicit, Sliding
from hvd_ext.spatial.layers.operands import along, placed, same
from hvd_ext.spatial.layers.windows.windowed import windowed
from hvd_ext.spatial.tensor import SpatialTensor, implements


def permuted(x: SpatialTensor, order: Sequence[int]) -> SpatialTensor:
    """Return `x` with its dims in another order, in which split dims keep their order."""
    dims = along(x)
    made = placed(x, x.local.permute(*order), [dims[dim] for dim in order])
    assert isinstance(made, SpatialTensor)
    return made


def cut(x: SpatialTensor, asked: Sequence[int]) -> SpatialTensor | None:
    """Return a view of `x` that cuts its split dims into blocks; None if `asked` does not.

    Args:
        x: split tensor.
        asked: (*before, extent / block, block, ..., *after), for any of the split dims.
    """
    found = _blocks(x, tuple(asked))
    if found is None:
        return None
    before, blocks, after = found
    own = x.local.shape[len(x.lead) : x.local.ndim - x.behind]
    y = x.like(x.local.reshape(*before, *own, *after), behind=len(after))
    first, end = len(before), len(before) + len(own)
    moved = [*range(first), *range(end, y.ndim), *range(first, end)]
    source = permuted(y, moved)
    steps = [block or 1 for block in blocks]
    extents = [extent // step for extent, step in zip(x.extents, steps, strict=True)]
    lead, dims = len(before) + len(after), len(steps)
    whole = [lead + dim for dim, block in enumerate(blocks) if block is None]

    def operation(block: Tensor, outputs: Box, inputs: Box) -> Tensor:
        sizes = [(size // step, step) for size, step in zip(block.shape[lead:], steps, strict=True)]
        spread = block.reshape(*block.shape[:lead], *(one for pair in sizes for one in pair))
        within = [lead + 2 * dim + 1 for dim in range(dims)]
        across = [lead + 2 * dim for dim in range(dims)]
        return spread.permute(*range(lead), *within, *across).squeeze(whole)

    kept = [block for block in blocks if block is not None]
    made = windowed(
        source,
        [Sliding(step, step) for step in steps],
        extents,
        operation,
        empty=lambda local: local.new_empty((*local.shape[:lead], *kept, *(0,) * dims)),
    )
    view = list(range(len(before)))
    number = lead
    for dim, block in enumerate(blocks):
        view.append(lead + len(kept) + dim)
        if block is not None:
            view.append(number)
            number += 1
    return _copied(x, made, [*view, *range(len(before), lead)])


def merged(x: SpatialTensor, asked: Sequence[int]) -> SpatialTensor | None:
    """Return a view of `x` that merges split dims with dims right after them; None for others.

    A split dim is not merged with other dims of space, because attention over cells needs all of
    them.

    Args:
        x: split tensor.
        asked: sizes, each of one dim of `x` or of several adjacent ones.
    """
    groups = _groups(tuple(x.shape), tuple(asked))
    first, end = len(x.lead), len(x.lead) + len(x.extents)
    split = x.split_dims or tuple(range(first, end))
    apart = {*split, *range(first, split[0]), *range(split[-1], end)}
    if groups is None or any(dim in apart for group in groups for dim in group[1:]):
        return None
    order = [*(dim for dim in range(x.ndim) if dim not in split), *split]
    lead, dims = x.ndim - len(split), len(split)
    source = placed(x, x.local.permute(order), [*[None] * lead, *(dim - first for dim in split)])
    assert isinstance(source, SpatialTensor)
    others = [group for group in groups if group[0] not in split]
    grown = [group for group in groups if group[0] in split]
    factors = [math.prod(x.shape[dim] for dim in group[1:]) for group in grown]
    extents = [extent * factor for extent, factor in zip(source.extents, factors, strict=True)]
    arranged = [order.index(dim) for group in (*others, *grown) for dim in group]
    sizes = [math.prod(x.shape[dim] for dim in group) for group in others]

    def operation(block: Tensor, outputs: Box, inputs: Box) -> Tensor:
        lengths = [n * factor for n, factor in zip(block.shape[lead:], factors, strict=True)]
        shuffled = block.permute(*arranged).reshape(*sizes, *lengths)
        for dim, ((begin, end), (first, _)) in enumerate(zip(outputs, inputs, strict=True)):
            start = begin - first * factors[dim]
            shuffled = shuffled.narrow(len(sizes) + dim, start, end - begin)
        return shuffled

    windows = [
        Explicit(
            tuple(cell // factor for cell in range(extent)),
            tuple(cell // factor + 1 for cell in range(extent)),
        )
        for extent, factor in zip(extents, factors, strict=True)
    ]
    made = windowed(
        source,
        windows,
        extents,
        operation,
        empty=lambda local: local.new_empty((*sizes, *(0,) * dims)),
    )
    arrangement = [*others, *grown]
    return _copied(x, made, [arrangement.index(group) for group in groups])


def _copied(x: SpatialTensor, made: SpatialTensor, order: Sequence[int]) -> SpatialTensor:
    # It may be a view on some ranks only, so all ranks copy.
    view = permuted(made, order)
    view = view.like(view.local.clone(memory_format=torch.contiguous_format))
    x.copies.add(view, view.local)
    return view


def _blocks(x: SpatialTensor, asked: tuple[int, ...]) -> Any:
    """Return `asked` before the split dims, the block of each or None, and the rest."""
    for first in range(len(asked)):
        if math.prod(asked[:first]) != math.prod(x.lead):
            continue
        at, blocks = first, []
        for extent in x.extents:
            block: int | None = None
            if asked[at : at + 1] != (extent,):
                if math.prod(asked[at : at + 2]) != extent or len(asked) < at + 2:
                    break
                block = asked[at + 1]
            blocks.append(block)
            at += 1 if block is None else 2
        else:
            if math.prod(asked[at:]) == math.prod(x.trail):
                return asked[:first], blocks, asked[at:]
    return None


def _groups(sizes: tuple[int, ...], asked: tuple[int, ...]) -> list[list[int]] | None:
    """Return the adjacent dims that make up each of the requested sizes."""
    groups: list[list[int]] = []
    at = 0
    for size in asked:
        group: list[int] = []
        while at < len(sizes) and (not group or math.prod(sizes[dim] for dim in group) < size):
            group.append(at)
            at += 1
        if not group or math.prod(sizes[dim] for dim in group) != size:
            return None
        groups.append(group)
    return groups if at == len(sizes) else None


@implements(Tensor.contiguous)
def contiguous(
    x: SpatialTensor, memory_format: torch.memory_format = torch.contiguous_format
) -> SpatialTensor:
    """Return the shard with contiguous cells."""
    return same(x, x.local.contiguous(memory_format=memory_format))
