"""The exchange as linear maps, each with its adjoint, so that autograd can differentiate it twice.

    forward                     backward, in the reverse order
    Open    starts to send      Begin   starts to send gradients back
    (interior is computed)      (interior's backward)
    Finish  waits               Close   waits, and adds what came

Open's adjoint is Close, Finish's is Begin, and the other way round: a second backward is
the first one's forward. `Join` puts pieces together, `Add` adds them to what is there;
`_Cut`, the adjoint of both, takes them out.

Autograd runs nodes in the reverse of the order in which they were made. All ranks make
those of an exchange alike, whether or not they have a part in it ("ties" keep them in
the graph), so that backward meets exchanges in one order everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hvd_ext.spatial.communicator import Communicator
from hvd_ext.spatial.partition import Box, lengths
from hvd_ext.spatial.routes import Routes


class Link:
    """What the two halves of one exchange share.

    With `whole`, Open hands out the shard as a single slice, whose gradient comes back as
    new memory.
    """

    def __init__(self, routes: Routes, comm: Communicator, *, whole: bool = False) -> None:
        self.routes = routes
        self.comm = comm
        self.whole = whole
        self.wait: Callable[[], None] | None = None
        self.arrivals: list[Tensor] = []
        self.lead: tuple[int, ...] = ()
        self.adjoint: Link | None = None

    def again(self) -> Link:
        """The link of the adjoint exchange, while it is made by one half and the other."""
        self.adjoint = Link(self.routes, self.comm, whole=self.whole)
        return self.adjoint

    def back(self) -> Link:
        """The link that the other half of the adjoint exchange made."""
        assert self.adjoint is not None, "the halves of an exchange ran in the wrong order"
        return self.adjoint


def cells(box: Box, origin: Box) -> tuple[Any, ...]:
    """The index of a global box in a tensor whose trailing dims hold `origin`."""
    return (
        ...,
        *(
            slice(begin - start, end - start)
            for (begin, end), (start, _) in zip(box, origin, strict=True)
        ),
    )


def _pack(source: Tensor, boxes: Sequence[Box], origin: Box) -> Tensor:
    return torch.cat([source[cells(box, origin)].reshape(-1) for box in boxes])


def _unpack(buffer: Tensor, boxes: Sequence[Box], lead: tuple[int, ...]) -> list[Tensor]:
    shapes = [(*lead, *lengths(box)) for box in boxes]
    flat = buffer.split([torch.Size(shape).numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(flat, shapes, strict=True)]


def _room(like: Tensor, boxes: Sequence[Box], lead: tuple[int, ...]) -> Tensor:
    count = sum(torch.Size((*lead, *lengths(box))).numel() for box in boxes)
    return like.new_empty(count)


def _lead(tensor: Tensor, dims: int) -> tuple[int, ...]:
    return tuple(tensor.shape[: tensor.ndim - dims])


def _open(link: Link, boxes: Sequence[Box], local: Tensor) -> list[Tensor]:
    plan = link.routes
    link.lead = _lead(local, len(plan.shard))
    sends = [(peer, _pack(local, sent, plan.shard)) for peer, sent in plan.sends]
    receives = [(peer, _room(local, got, link.lead)) for peer, got in plan.receives]
    link.arrivals = [buffer for _, buffer in receives]
    link.wait = link.comm.start(sends, receives)
    return [local[cells(box, plan.shard)] for box in boxes]


def _finish(link: Link) -> list[Tensor]:
    assert link.wait is not None
    link.wait()
    pieces = [
        piece
        for buffer, (_, boxes) in zip(link.arrivals, link.routes.receives, strict=True)
        for piece in _unpack(buffer, boxes, link.lead)
    ]
    link.wait, link.arrivals = None, []
    return pieces


def _begin(link: Link, like: Tensor, lead: tuple[int, ...], pieces: Sequence[Tensor]) -> None:
    plan = link.routes
    link.lead = lead
    rest = iter(pieces)
    sends = [
        (peer, torch.cat([next(rest).reshape(-1) for _ in boxes])) for peer, boxes in plan.receives
    ]
    receives = [(peer, _room(like, boxes, lead)) for peer, boxes in plan.sends]
    link.arrivals = [buffer for _, buffer in receives]
    link.wait = link.comm.start(sends, receives)


def _close(link: Link, boxes: Sequence[Box], like: Tensor, slices: Sequence[Tensor]) -> Tensor:
    plan = link.routes
    if link.whole:
        (whole,) = slices
        # Nobody else has it, unless somebody differentiates this.
        total = whole.clone() if whole.requires_grad else whole
    else:
        total = like.new_zeros((*link.lead, *lengths(plan.shard)))
        for number, (box, part) in enumerate(zip(boxes, slices, strict=True)):
            target = total[cells(box, plan.shard)]
            # The first, usually the interior, meets nothing but zeros.
            _ = target.add_(part) if number else target.copy_(part)
    assert link.wait is not None
    link.wait()
    for buffer, (_, sent) in zip(link.arrivals, plan.sends, strict=True):
        for box, part in zip(sent, _unpack(buffer, sent, link.lead), strict=True):
            total[cells(box, plan.shard)] += part
    link.wait, link.arrivals = None, []
    return total


class Open(Function):
    """(local) -> token, slices of local; starts to send what peers need of it."""

    @staticmethod
    def forward(ctx: Any, link: Link, boxes: Sequence[Box], local: Tensor) -> tuple[Tensor, ...]:
        """Start to send; `boxes`, within the own shard, are handed on as views."""
        ctx.link, ctx.boxes = link, boxes
        ctx.save_for_backward(local.new_empty(0))
        return (local.new_zeros(()), *_open(link, boxes, local))

    @staticmethod
    def backward(ctx: Any, token: Tensor, *slices: Tensor) -> tuple[Any, ...]:
        """Wait for the gradients that `Finish.backward` asked for, and add all."""
        return (None, None, Close.apply(ctx.link.back(), ctx.boxes, token, *slices))


class Finish(Function):
    """(token) -> tie, received pieces in the order of `Routes.received_boxes`."""

    @staticmethod
    def forward(ctx: Any, link: Link, token: Tensor) -> tuple[Tensor, ...]:
        """Wait for what Open started."""
        ctx.link, ctx.lead = link, link.lead
        # Read in backward on every rank: under activation checkpointing it makes all
        # of them recompute, and so exchange, at the same place.
        ctx.save_for_backward(token)
        return (token.new_zeros(()), *_finish(link))

    @staticmethod
    def backward(ctx: Any, tie: Tensor, *pieces: Tensor) -> tuple[Any, ...]:
        """Start to send gradients back."""
        _ = ctx.saved_tensors
        return (None, Begin.apply(ctx.link.again(), ctx.lead, tie, *pieces))


class Begin(Function):
    """(tie, pieces) -> token; starts to send pieces to the shards they belong to."""

    @staticmethod
    def forward(
        ctx: Any, link: Link, lead: tuple[int, ...], tie: Tensor, *pieces: Tensor
    ) -> Tensor:
        """Start to send."""
        ctx.link = link
        _begin(link, tie, lead, pieces)
        return tie.new_zeros(())

    @staticmethod
    def backward(ctx: Any, token: Tensor) -> tuple[Any, ...]:
        """Wait for what `Close.backward` started to send."""
        return (None, None, *Finish.apply(ctx.link.back(), token))


class Close(Function):
    """(token, slices) -> local: slices where they belong, plus what peers sent."""

    @staticmethod
    def forward(
        ctx: Any, link: Link, boxes: Sequence[Box], token: Tensor, *slices: Tensor
    ) -> Tensor:
        """Add up what this rank has, wait, and add what came."""
        ctx.link, ctx.boxes = link, boxes
        return _close(link, boxes, token, slices)

    @staticmethod
    def backward(ctx: Any, local: Tensor) -> tuple[Any, ...]:
        """Send the gradient along the routes of the forward exchange."""
        return (None, None, *Open.apply(ctx.link.again(), ctx.boxes, local))


class Join(Function):
    """(pieces, ties) -> one block: each piece in its box, `fill` where there is none."""

    @staticmethod
    def forward(
        ctx: Any, box: Box, boxes: Sequence[Box], fill: float, like: Tensor, *parts: Tensor
    ) -> Tensor:
        """Put pieces together; parts past the boxes are ties, and count for nothing."""
        pieces, ties = parts[: len(boxes)], parts[len(boxes) :]
        ctx.box, ctx.boxes = box, boxes
        ctx.save_for_backward(*ties)
        first = pieces[0] if pieces else like
        shape = (*_lead(first, len(box)), *lengths(box))
        covered = sum(piece.numel() for piece in pieces)
        joined = torch.empty(
            shape, dtype=first.dtype, device=first.device, memory_format=layout(first)
        )
        if covered < joined.numel():
            joined.fill_(fill)
        for at, piece in zip(boxes, pieces, strict=True):
            joined[cells(at, box)] = piece
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
        """Add pieces; parts past the boxes are ties, and count for nothing."""
        ctx.box, ctx.boxes = box, boxes
        ctx.save_for_backward(*parts[len(boxes) :])
        ctx.mark_dirty(total)
        for at, piece in zip(boxes, parts[: len(boxes)], strict=True):
            total[cells(at, box)] += piece
        return total

    @staticmethod
    def backward(ctx: Any, total: Tensor) -> tuple[Any, ...]:
        """The total's gradient is that of the first part as it is."""
        found = _Cut.apply(ctx.box, ctx.boxes, total, *ctx.saved_tensors)
        return (None, None, total, *found)


class _Cut(Function):
    """(block, ties) -> the pieces in boxes, and zeros for the ties: the adjoint of Join.

    The ties are arguments so that a second backward comes by the exchange on all ranks,
    and not only on those whose outputs it went into.
    """

    @staticmethod
    def forward(
        ctx: Any, box: Box, boxes: Sequence[Box], joined: Tensor, *ties: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.box, ctx.boxes = box, boxes
        ctx.like = joined.new_empty((*_lead(joined, len(box)), *(0 for _ in box)))
        ctx.save_for_backward(*ties)
        # Kernels would copy what is not contiguous, and keep the whole meanwhile.
        kept = layout(joined)
        pieces = (joined[cells(at, box)].contiguous(memory_format=kept) for at in boxes)
        return (*pieces, *map(torch.zeros_like, ties))

    @staticmethod
    def backward(ctx: Any, *parts: Tensor) -> tuple[Any, ...]:
        joined = Join.apply(ctx.box, ctx.boxes, 0.0, ctx.like, *parts)
        return (None, None, joined, *map(torch.zeros_like, ctx.saved_tensors))


def layout(tensor: Tensor) -> torch.memory_format:
    """Whether a tensor is channels_last."""
    for ndim, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if (
            tensor.ndim == ndim
            and tensor.is_contiguous(memory_format=layout)
            and not tensor.is_contiguous()
        ):
            return layout
    return torch.contiguous_format


class Weigh(Function):
    """A tensor that changes between partitioned and replicated; see `enter` and `leave`."""

    @staticmethod
    def forward(ctx: Any, ranks: int, power: int, back: int, fresh: bool, tensor: Tensor) -> Tensor:
        """The tensor times ranks ** power; its gradient times ranks ** back.

        With `fresh` the gradient comes as new memory that nobody else reads.
        """
        ctx.ranks, ctx.power, ctx.back, ctx.fresh = ranks, power, back, fresh
        if power == 0:
            return tensor.view_as(tensor)
        # Divided, not multiplied by 1 / ranks: what is a multiple stays exact.
        return tensor * ranks if power > 0 else tensor / ranks

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """Scale; a second backward scales as forward did."""
        if ctx.fresh and ctx.back == 1 and not torch.is_grad_enabled():
            # Large weights' gradients are most of what there is to write here.
            return (None, None, None, None, gradient.mul_(ctx.ranks))
        return (
            None,
            None,
            None,
            None,
            Weigh.apply(ctx.ranks, ctx.back, ctx.power, False, gradient),
        )


class SumOverSpace(Function):
    """The sum of every rank's tensor; its own adjoint."""

    @staticmethod
    def forward(ctx: Any, comm: Communicator, tensor: Tensor) -> Tensor:
        """Sum over the group."""
        ctx.comm = comm
        # Read in backward for the reason that Finish gives.
        ctx.save_for_backward(tensor.new_empty(0))
        return comm.allreduce(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """Sum the gradients over the group."""
        _ = ctx.saved_tensors
        return (None, SumOverSpace.apply(ctx.comm, gradient))


def enter(tensor: Tensor, comm: Communicator, *, fresh: bool = False) -> Tensor:
    """A replicated tensor on its way into a partitioned operation.

    What comes back is this rank's share of its gradient; times the ranks, so that the
    mean over the space group is the gradient, as of everything that is replicated.

    Args:
        tensor: replicated.
        comm: the space group.
        fresh: the operations' gradients of it are new memory, and may be scaled in place.
    """
    if comm.size == 1 or not tensor.requires_grad:
        return tensor
    entered: Tensor = Weigh.apply(comm.size, 0, 1, fresh, tensor)
    return entered


def leave(tensor: Tensor, comm: Communicator) -> Tensor:
    """A shard on its way into an exchange that makes the same of it on every rank.

    That exchange adds up the gradients of all ranks, of which the mean is meant: the sum
    that comes back is divided.
    """
    if comm.size == 1 or not tensor.requires_grad:
        return tensor
    left: Tensor = Weigh.apply(comm.size, 0, -1, False, tensor)
    return left


def sum_over_space(tensor: Tensor, comm: Communicator) -> Tensor:
    """Sum of every rank's tensor, for each rank to use on its own shard."""
    if comm.size == 1:
        return tensor
    total: Tensor = SumOverSpace.apply(comm, tensor)
    return total
