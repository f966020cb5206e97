"""Tensors that every rank of a space group has, on their way into and out of split operations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hvd_ext.spatial.exchange.communicator import Communicator


class ScaleGradient(Function):
    """A tensor that becomes replicated or partitioned, which changes the scale of its gradient."""

    @staticmethod
    def forward(ctx: Any, ranks: int, power: int, back: int, fresh: bool, tensor: Tensor) -> Tensor:
        """The tensor times ranks ** power; its gradient times ranks ** back.

        With `fresh`, the gradient is new memory that nothing else reads.
        """
        ctx.ranks, ctx.power, ctx.back, ctx.fresh = ranks, power, back, fresh
        if power == 0:
            return tensor.view_as(tensor)
        # Divided, not multiplied by 1 / ranks, so that multiples of ranks stay exact.
        return tensor * ranks if power > 0 else tensor / ranks

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """Scale; a second backward scales as forward did."""
        if ctx.fresh and ctx.back == 1 and not torch.is_grad_enabled():
            # Most of the memory to write here is gradients of large weights.
            return (None, None, None, None, gradient.mul_(ctx.ranks))
        return (
            None,
            None,
            None,
            None,
            ScaleGradient.apply(ctx.ranks, ctx.back, ctx.power, False, gradient),
        )


class SumOverSpace(Function):
    """Sum of every rank's tensor; its own adjoint."""

    @staticmethod
    def forward(ctx: Any, comm: Communicator, tensor: Tensor) -> Tensor:
        ctx.comm = comm
        # Read in backward for the reason that FinishExchange gives.
        ctx.save_for_backward(tensor.new_empty(0))
        return comm.allreduce(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        _ = ctx.saved_tensors
        return (None, SumOverSpace.apply(ctx.comm, gradient))


class AverageGradient(Function):
    """A tensor that several ranks have, whose gradient is the mean of theirs."""

    @staticmethod
    def forward(ctx: Any, comm: Communicator, tensor: Tensor) -> Tensor:
        ctx.comm = comm
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return (None, SumOverSpace.apply(ctx.comm, gradient) / ctx.comm.size)


def to_partitioned(tensor: Tensor, comm: Communicator, *, fresh: bool = False) -> Tensor:
    """Return a replicated tensor as an operand of a partitioned operation.

    The backward pass returns this rank's share of its gradient, times the ranks, so that the mean
    over the space group is the gradient, as for all replicated tensors.

    Args:
        tensor: replicated.
        comm: the space group.
        fresh: the operations' gradients of it are new memory, and may be scaled in place.
    """
    if comm.size == 1 or not tensor.requires_grad:
        return tensor
    entered: Tensor = ScaleGradient.apply(comm.size, 0, 1, fresh, tensor)
    return entered


def to_replicated(tensor: Tensor, comm: Communicator) -> Tensor:
    """Return a shard as the input of an exchange whose result is the same on every rank.

    The backward of that exchange sums the gradients of all ranks, but the gradient is their mean,
    so the sum is divided.
    """
    if comm.size == 1 or not tensor.requires_grad:
        return tensor
    left: Tensor = ScaleGradient.apply(comm.size, 0, -1, False, tensor)
    return left


def average_gradient(tensor: Tensor, comm: Communicator) -> Tensor:
    """Return a parameter that the ranks of `comm` have, so that it gets their mean gradient."""
    if comm.size == 1 or not tensor.requires_grad:
        return tensor
    averaged: Tensor = AverageGradient.apply(comm, tensor)
    return averaged


def from_first(tensor: Tensor, comm: Communicator) -> Tensor:
    """Return the first rank's `tensor`; a collective."""
    if comm.size == 1:
        return tensor
    flat = torch.empty_like(tensor, memory_format=torch.contiguous_format).copy_(tensor).view(-1)
    if comm.rank == 0:
        comm.start([(rank, [flat]) for rank in range(1, comm.size)], [], flat)()
    else:
        comm.start([], [(0, flat)], flat)()
    return flat.view(tensor.shape)


def sum_over_space(tensor: Tensor, comm: Communicator) -> Tensor:
    """Return the sum of every rank's tensor, which each rank uses on its own shard."""
    if comm.size == 1:
        return tensor
    total: Tensor = SumOverSpace.apply(comm, tensor)
    return total


def by_rank(tensor: Tensor, comm: Communicator) -> Tensor:
    """Return every rank's `tensor`, (ranks, *shape), for small results."""
    zeros = torch.zeros_like(tensor)
    rows = [tensor if rank == comm.rank else zeros for rank in range(comm.size)]
    return sum_over_space(torch.stack(rows), comm)
