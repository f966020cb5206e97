"""The halo exchange as a linear map with its adjoint, so that autograd can differentiate it twice.

    forward                            backward, in the reverse order
    StartExchange   sends              StartAdjoint    sends gradients back
    (interior is computed)             (backward of the interior)
    FinishExchange  waits              FinishAdjoint   waits, and adds what came

The adjoint of StartExchange is FinishAdjoint, that of FinishExchange is StartAdjoint, and vice
versa: the backward of a backward is the forward exchange.

Autograd runs nodes in the reverse of the order in which they were made. All ranks make
the same nodes for an exchange, whether or not they have a part in it ("ties" keep them in
the graph), so that backward reaches the exchanges in the same order on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function

from hvd_ext.spatial.exchange.assemble import index_of, lead_of
from hvd_ext.spatial.exchange.communicator import Communicator, Send
from hvd_ext.spatial.geometry.exchange_plan import ExchangePlan, Messages
from hvd_ext.spatial.geometry.partition import Box, lengths

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Exchanged(Generic[T]):
    """The result of `exchange_around`.

    Attributes:
        interior: result of the computation meanwhile.
        slices: the boxes of the own shard.
        pieces: the received pieces, in the order of `ExchangePlan.received_boxes`.
        ties: must go into the output, on every rank.
    """

    interior: T
    slices: list[Tensor]
    pieces: list[Tensor]
    ties: list[Tensor]


def exchange_around(
    plan: ExchangePlan,
    comm: Communicator,
    boxes: Sequence[Box],
    local: Tensor,
    compute: Callable[[list[Tensor]], T],
    *,
    overlap: bool,
    whole: bool = False,
) -> Exchanged[T]:
    """Exchange halos, and compute the interior meanwhile.

    Args:
        plan: the messages.
        comm: the space group.
        boxes: boxes within the own shard, passed to `compute` as views of `local`.
        local: the shard.
        compute: the interior, from the boxes.
        overlap: compute before waiting, not after.
        whole: see HaloExchange.
    """
    if not plan.active:
        slices = [local[index_of(box, plan.shard)] for box in boxes]
        # A block that is only padding must depend on the input, as all others do.
        return Exchanged(compute(slices), slices, [], [] if boxes else [local])
    exchange = HaloExchange(plan, comm, whole=whole)
    token, *slices = StartExchange.apply(exchange, boxes, local)
    if overlap:
        interior = compute(slices)
    tie, *pieces = FinishExchange.apply(exchange, token)
    if not overlap:
        interior = compute(slices)
    return Exchanged(interior, slices, pieces, [tie])


class HaloExchange:
    """One exchange, from its start to its finish; forward or, as the adjoint, backward.

    With `whole`, the shard is returned as a single slice, whose gradient comes back in new memory.

    Attributes:
        lead: sizes of the dims before those that are split.
    """

    def __init__(self, plan: ExchangePlan, comm: Communicator, *, whole: bool = False) -> None:
        self._plan = plan
        self._comm = comm
        self._whole = whole
        self._receive: Callable[[], list[tuple[Box, Tensor]]] | None = None
        self._adjoint: HaloExchange | None = None
        self.lead: tuple[int, ...] = ()

    def start(self, local: Tensor, boxes: Sequence[Box]) -> list[Tensor]:
        """Send what peers need of `local`; returns `boxes` of it as views."""
        shard = self._plan.shard
        sends = [
            (peer, [local[index_of(box, shard)] for box in sent]) for peer, sent in self._plan.sends
        ]
        self._start(local, lead_of(local, len(shard)), sends, self._plan.receives)
        return [local[index_of(box, shard)] for box in boxes]

    def finish(self) -> list[Tensor]:
        """Wait for the pieces that peers send."""
        return [piece for _, piece in self._finish()]

    def start_adjoint(self, like: Tensor, lead: tuple[int, ...], pieces: Sequence[Tensor]) -> None:
        """Send pieces to the shards that they belong to."""
        rest = iter(pieces)
        sends = [(peer, [next(rest) for _ in boxes]) for peer, boxes in self._plan.receives]
        self._start(like, lead, sends, self._plan.sends)

    def finish_adjoint(
        self, like: Tensor, boxes: Sequence[Box], slices: Sequence[Tensor]
    ) -> Tensor:
        """Add up slices of the own shard, wait, and add what peers send."""
        shard = self._plan.shard
        if self._whole:
            (given,) = slices
            # Nothing else reads it, unless this is differentiated again.
            total = given.clone() if given.requires_grad else given
        else:
            total = like.new_zeros((*self.lead, *lengths(shard)))
            for number, (box, part) in enumerate(zip(boxes, slices, strict=True)):
                target = total[index_of(box, shard)]
                # The first slice, usually the interior, is added to zeros.
                _ = target.add_(part) if number else target.copy_(part)
        for box, part in self._finish():
            total[index_of(box, shard)] += part
        return total

    def adjoint(self) -> HaloExchange:
        """Return the backward exchange, to start it; its finish finds it as `started_adjoint`."""
        self._adjoint = HaloExchange(self._plan, self._comm, whole=self._whole)
        return self._adjoint

    @property
    def started_adjoint(self) -> HaloExchange:
        """Return the last result of `adjoint`."""
        assert self._adjoint is not None, "the halves of an exchange ran in the wrong order"
        return self._adjoint

    def _start(
        self, like: Tensor, lead: tuple[int, ...], sends: Sequence[Send], incoming: Messages
    ) -> None:
        shapes = [[torch.Size((*lead, *lengths(box))) for box in boxes] for _, boxes in incoming]
        counts = [[shape.numel() for shape in group] for group in shapes]
        receives = [
            (peer, like.new_empty(sum(group)))
            for (peer, _), group in zip(incoming, counts, strict=True)
        ]
        wait = self._comm.start(sends, receives, like)

        def receive() -> list[tuple[Box, Tensor]]:
            wait()
            return [
                (box, part.view(shape))
                for (_, boxes), (_, buffer), sizes, group in zip(
                    incoming, receives, shapes, counts, strict=True
                )
                for box, part, shape in zip(boxes, buffer.split(group), sizes, strict=True)
            ]

        self.lead, self._receive = lead, receive

    def _finish(self) -> list[tuple[Box, Tensor]]:
        assert self._receive is not None
        # Frees the buffers, because the graph keeps this object.
        receive, self._receive = self._receive, None
        return receive()


class StartExchange(Function):
    """(local) -> token, slices of local; sends the parts that peers need."""

    @staticmethod
    def forward(
        ctx: Any, exchange: HaloExchange, boxes: Sequence[Box], local: Tensor
    ) -> tuple[Tensor, ...]:
        """Send; `boxes`, within the own shard, are returned as views."""
        ctx.exchange, ctx.boxes = exchange, boxes
        ctx.save_for_backward(local.new_empty(0))
        return (local.new_zeros(()), *exchange.start(local, boxes))

    @staticmethod
    def backward(ctx: Any, token: Tensor, *slices: Tensor) -> tuple[Any, ...]:
        """Wait for the gradients that FinishExchange.backward requested, and add all."""
        exchange = ctx.exchange.started_adjoint
        return (None, None, FinishAdjoint.apply(exchange, ctx.boxes, token, *slices))


class FinishExchange(Function):
    """(token) -> tie, received pieces in the order of `ExchangePlan.received_boxes`."""

    @staticmethod
    def forward(ctx: Any, exchange: HaloExchange, token: Tensor) -> tuple[Tensor, ...]:
        """Wait for the pieces that StartExchange requested."""
        ctx.exchange, ctx.lead = exchange, exchange.lead
        # Read in backward on every rank: under activation checkpointing it makes all
        # of them recompute, and so exchange, at the same place.
        ctx.save_for_backward(token)
        return (token.new_zeros(()), *exchange.finish())

    @staticmethod
    def backward(ctx: Any, tie: Tensor, *pieces: Tensor) -> tuple[Any, ...]:
        _ = ctx.saved_tensors
        return (None, StartAdjoint.apply(ctx.exchange.adjoint(), ctx.lead, tie, *pieces))


class StartAdjoint(Function):
    """(tie, pieces) -> token; sends pieces to the shards that they belong to."""

    @staticmethod
    def forward(
        ctx: Any, exchange: HaloExchange, lead: tuple[int, ...], tie: Tensor, *pieces: Tensor
    ) -> Tensor:
        ctx.exchange = exchange
        exchange.start_adjoint(tie, lead, pieces)
        return tie.new_zeros(())

    @staticmethod
    def backward(ctx: Any, token: Tensor) -> tuple[Any, ...]:
        """Wait for the pieces that FinishAdjoint.backward requested."""
        return (None, None, *FinishExchange.apply(ctx.exchange.started_adjoint, token))


class FinishAdjoint(Function):
    """(token, slices) -> local: slices in their places, plus the pieces that peers sent."""

    @staticmethod
    def forward(
        ctx: Any, exchange: HaloExchange, boxes: Sequence[Box], token: Tensor, *slices: Tensor
    ) -> Tensor:
        """Add this rank's slices, wait, and add the received pieces."""
        ctx.exchange, ctx.boxes = exchange, boxes
        return exchange.finish_adjoint(token, boxes, slices)

    @staticmethod
    def backward(ctx: Any, local: Tensor) -> tuple[Any, ...]:
        """Send the gradient as the forward exchange does."""
        return (None, None, *StartExchange.apply(ctx.exchange.adjoint(), ctx.boxes, local))
