"""Blocks put together from pieces, and taken apart again, each the adjoint of the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hvd_ext.spatial.geometry.partition import Box, lengths


def index_of(box: Box, origin: Box) -> tuple[Any, ...]:
    """Return the index of a global box in a tensor whose trailing dims are the box `origin`."""
    return (
        ...,
        *(
            slice(begin - start, end - start)
            for (begin, end), (start, _) in zip(box, origin, strict=True)
        ),
    )


def lead_of(tensor: Tensor, dims: int) -> tuple[int, ...]:
    """Return the sizes of the dims before the last `dims`."""
    return tuple(tensor.shape[: tensor.ndim - dims])


class Join(Function):
    """(pieces, ties) -> one block: each piece in its box, `fill` where there is none."""

    @staticmethod
    def forward(
        ctx: Any, box: Box, boxes: Sequence[Box], fill: float, like: Tensor, *parts: Tensor
    ) -> Tensor:
        """Put pieces together; parts beyond the boxes are ties, which add nothing."""
        pieces, ties = parts[: len(boxes)], parts[len(boxes) :]
        ctx.box, ctx.boxes = box, boxes
        ctx.save_for_backward(*ties)
        first = pieces[0] if pieces else like
        shape = (*lead_of(first, len(box)), *lengths(box))
        covered = sum(piece.numel() for piece in pieces)
        joined = torch.empty(
            shape, dtype=first.dtype, device=first.device, memory_format=layout(first)
        )
        if covered < joined.numel():
            joined.fill_(fill)
        for at, piece in zip(boxes, pieces, strict=True):
            joined[index_of(at, box)] = piece
        return joined

    @staticmethod
    def backward(ctx: Any, joined: Tensor) -> tuple[Any, ...]:
        """Take each piece's gradient out of the block's."""
        found = _Cut.apply(ctx.box, ctx.boxes, joined, *ctx.saved_tensors)
        return (None, None, None, None, *found)


class Add(Function):
    """(total, pieces, ties) -> total, which is changed: each piece added in its box."""

    @staticmethod
    def forward(ctx: Any, box: Box, boxes: Sequence[Box], total: Tensor, *parts: Tensor) -> Tensor:
        """Add pieces; parts beyond the boxes are ties, which add nothing."""
        ctx.box, ctx.boxes = box, boxes
        ctx.save_for_backward(*parts[len(boxes) :])
        ctx.mark_dirty(total)
        for at, piece in zip(boxes, parts[: len(boxes)], strict=True):
            total[index_of(at, box)] += piece
        return total

    @staticmethod
    def backward(ctx: Any, total: Tensor) -> tuple[Any, ...]:
        """Pass the total's gradient unchanged to the first part."""
        found = _Cut.apply(ctx.box, ctx.boxes, total, *ctx.saved_tensors)
        return (None, None, total, *found)


class _Cut(Function):
    """(block, ties) -> the pieces in boxes, and zeros for the ties: the adjoint of Join.

    The ties are arguments so that a second backward passes the exchange on all ranks, and not only
    on those whose outputs used it.
    """

    @staticmethod
    def forward(
        ctx: Any, box: Box, boxes: Sequence[Box], joined: Tensor, *ties: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.box, ctx.boxes = box, boxes
        ctx.like = joined.new_empty((*lead_of(joined, len(box)), *(0 for _ in box)))
        ctx.save_for_backward(*ties)
        # Kernels would copy a tensor that is not contiguous, and keep the whole meanwhile.
        kept = layout(joined)
        pieces = (joined[index_of(at, box)].contiguous(memory_format=kept) for at in boxes)
        return (*pieces, *map(torch.zeros_like, ties))

    @staticmethod
    def backward(ctx: Any, *parts: Tensor) -> tuple[Any, ...]:
        joined = Join.apply(ctx.box, ctx.boxes, 0.0, ctx.like, *parts)
        return (None, None, joined, *map(torch.zeros_like, ctx.saved_tensors))


def join(
    box: Box,
    pieces: Sequence[tuple[Box, Tensor]],
    like: Tensor,
    fill: float,
    ties: Sequence[Tensor],
) -> Tensor:
    """Put pieces together in `box`, `fill` between them."""
    joined: Tensor = Join.apply(
        box, tuple(at for at, _ in pieces), fill, like.detach(), *(p for _, p in pieces), *ties
    )
    return joined


def layout(tensor: Tensor) -> torch.memory_format:
    for ndim, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if (
            tensor.ndim == ndim
            and tensor.is_contiguous(memory_format=layout)
            and not tensor.is_contiguous()
        ):
            return layout
    return torch.contiguous_format
