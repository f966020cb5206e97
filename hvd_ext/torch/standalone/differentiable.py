"""The collectives that return their result, through which backward() goes as in Horovod."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvd_ext.torch.standalone import collectives, ranks, reducing
from hvd_ext.torch.standalone.compression import Compression
from hvd_ext.torch.standalone.handles import synchronize
from hvd_ext.torch.standalone.ranks import global_process_set
from hvd_ext.torch.standalone.reductions import Average, Sum

Tensors = Sequence[torch.Tensor]


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, options: dict[str, Any], *tensors: torch.Tensor) -> Any:
        ctx.options = options
        return synchronize(reducing.grouped_allreduce_async(tensors, name=name, **options))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        options = {**ctx.options, "average": None}
        if ctx.options["op"] is None and ctx.options["average"] is not None:
            options["op"] = Average if ctx.options["average"] else Sum
        return None, None, *_Allreduce.apply(None, options, *_contiguous(grads))


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: Any, *tensors: torch.Tensor) -> Any:
        outputs = synchronize(collectives.grouped_allgather_async(tensors, name, process_set))
        ctx.counts = [len(tensor) for tensor in tensors]
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        means = grouped_allreduce(_contiguous(grads), op=Average)
        counts = allgather(torch.tensor([ctx.counts]))
        begins = counts[: ranks.rank()].sum(0).tolist()
        parts = zip(means, begins, ctx.counts, strict=True)
        return None, None, *(mean.narrow(0, begin, count) for mean, begin, count in parts)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: Any
    ) -> Any:
        ctx.root = root_rank
        return synchronize(collectives.broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        mean = allreduce(grads[0].contiguous(), op=Average)
        return mean if ranks.rank() == ctx.root else torch.zeros_like(mean), None, None, None


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: Any
    ) -> Any:
        output, received = synchronize(
            collectives.alltoall_async(tensor, splits, name, process_set)
        )
        ctx.received = received
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        grad, _ = _Alltoall.apply(grads[0].contiguous(), ctx.received, None, global_process_set)
        return grad, None, None, None


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, options: dict[str, Any], *tensors: torch.Tensor) -> Any:
        ctx.options = options
        return synchronize(reducing.grouped_reducescatter_async(tensors, name, **options))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        options = ctx.options
        factor = options["prescale_factor"] * options["postscale_factor"]
        factor *= ranks.size() if options["op"] == Sum else 1
        return None, None, *grouped_allgather([grad.contiguous() * factor for grad in grads])


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor over all ranks; the gradient is reduced alike."""
    (result,) = grouped_allreduce(
        [tensor],
        *(average, name, compression, op, prescale_factor, postscale_factor, process_set),
    )
    return result


def grouped_allreduce(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> list[torch.Tensor]:
    """Allreduce several tensors as one collective."""
    options = {
        "average": average,
        "op": op,
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
        "process_set": process_set,
    }
    exchanged, contexts = _compress(compression, tensors)
    results = _Allreduce.apply(name, options, *exchanged)
    return _decompress(compression, results, contexts)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: Any = global_process_set
) -> torch.Tensor:
    """Join the rows of all ranks' tensors, in rank order."""
    (result,) = grouped_allgather([tensor], name, process_set)
    return result


def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: Any = global_process_set
) -> tuple[torch.Tensor, ...]:
    """Allgather several tensors as one collective."""
    results: tuple[torch.Tensor, ...] = _Allgather.apply(name, process_set, *tensors)
    return results


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Any = global_process_set,
) -> torch.Tensor:
    """Give every rank the root's tensor; the root's gradient is the mean of all ranks'."""
    result: torch.Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)
    return result


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: Any = global_process_set,
) -> Any:
    """Send some rows of a tensor to each rank.

    Returns:
        The received rows, in rank order; if `splits` is given, also their number from each
        rank.
    """
    output, received = _Alltoall.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce a tensor over all ranks, and return this rank's rows."""
    (result,) = grouped_reducescatter(
        [tensor], name, compression, op, process_set, prescale_factor, postscale_factor
    )
    return result


def grouped_reducescatter(
    tensors: Tensors,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reducescatter several tensors as one collective."""
    options = {
        "op": op,
        "process_set": process_set,
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
    }
    exchanged, contexts = _compress(compression, tensors)
    results = _Reducescatter.apply(name, options, *exchanged)
    return _decompress(compression, results, contexts)


def _compress(compression: Any, tensors: Tensors) -> tuple[list[torch.Tensor], list[Any]]:
    pairs = [compression.compress(tensor) for tensor in tensors]
    return [exchanged for exchanged, _ in pairs], [context for _, context in pairs]


def _decompress(compression: Any, results: Tensors, contexts: list[Any]) -> list[torch.Tensor]:
    pairs = zip(results, contexts, strict=True)
    return [compression.decompress(result, context) for result, context in pairs]


def _contiguous(grads: Tensors) -> list[torch.Tensor]:
    return [grad.contiguous() for grad in grads]
