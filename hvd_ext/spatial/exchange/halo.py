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

from hvd_ext.spatial.exchange.assemble import cells, lead_of
from hvd_ext.spatial.exchange.communicator import Communicator
from hvd_ext.spatial.geometry.exchange_plan import Routes
from hvd_ext.spatial.geometry.partition import Box, lengths


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


def _pack(source: Tensor, boxes: Sequence[Box], origin: Box) -> Tensor:
    return torch.cat([source[cells(box, origin)].reshape(-1) for box in boxes])


def _unpack(buffer: Tensor, boxes: Sequence[Box], lead: tuple[int, ...]) -> list[Tensor]:
    shapes = [(*lead, *lengths(box)) for box in boxes]
    flat = buffer.split([torch.Size(shape).numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(flat, shapes, strict=True)]


def _room(like: Tensor, boxes: Sequence[Box], lead: tuple[int, ...]) -> Tensor:
    count = sum(torch.Size((*lead, *lengths(box))).numel() for box in boxes)
    return like.new_empty(count)


def _open(link: Link, boxes: Sequence[Box], local: Tensor) -> list[Tensor]:
    plan = link.routes
    link.lead = lead_of(local, len(plan.shard))
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
