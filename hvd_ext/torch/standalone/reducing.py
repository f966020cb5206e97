"""Allreduce and reducescatter, with a handle or in place, and with Horovod's arguments."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hvd_ext.dtypes import DTYPES
from hvd_ext.tensors import dtype_name
from hvd_ext.torch.standalone import ranks
from hvd_ext.torch.standalone.collectives import allgather_async, without_rows
from hvd_ext.torch.standalone.coordinator import Request
from hvd_ext.torch.standalone.handles import (
    ask,
    give_back_all,
    next_name,
    on_host,
    require_all_ranks,
    synchronize,
    waited_for,
)
from hvd_ext.torch.standalone.ranks import global_process_set
from hvd_ext.torch.standalone.reductions import OPERATIONS, Adasum, Average, Sum
from hvd_ext.torch.standalone.refused import needs_horovod

Tensors = Sequence[torch.Tensor]


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> int:
    """Reduce a tensor over all ranks into a new tensor."""
    op, factors = _choose_op(op, average), (prescale_factor, postscale_factor)
    return _reduce("allreduce", [tensor], name, op, factors, process_set)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> int:
    """Reduce a tensor over all ranks, in place."""
    op, factors = _choose_op(op, average), (prescale_factor, postscale_factor)
    return _reduce("allreduce", [tensor], name, op, factors, process_set, in_place=True)


allreduce_ = waited_for(allreduce_async_)


def grouped_allreduce_async(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> int:
    """Reduce tensors over all ranks as one collective, into new tensors."""
    op, factors = _choose_op(op, average), (prescale_factor, postscale_factor)
    return _reduce("allreduce", tensors, name, op, factors, process_set, grouped=True)


def grouped_allreduce_async_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> int:
    """Reduce tensors over all ranks, as one collective and in place."""
    op, factors = _choose_op(op, average), (prescale_factor, postscale_factor)
    return _reduce(
        "allreduce", tensors, name, op, factors, process_set, grouped=True, in_place=True
    )


grouped_allreduce_ = waited_for(grouped_allreduce_async_)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Reduce a tensor over all ranks; the result is this rank's rows, in rank order."""
    factors = (prescale_factor, postscale_factor)
    return _reduce("reducescatter", [tensor], name, op, factors, process_set)


def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: int = Average,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Reduce tensors over all ranks, as one collective; the results are this rank's rows."""
    factors = (prescale_factor, postscale_factor)
    return _reduce("reducescatter", tensors, name, op, factors, process_set, grouped=True)


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: Any = global_process_set
) -> Callable[[], torch.Tensor]:
    """Sum or average a sparse tensor over all ranks; a call of the result waits for it."""
    merged = tensor.coalesce()
    rows = merged.indices().transpose(0, 1).contiguous()
    indices = allgather_async(rows, f"{name}.indices", process_set)
    values = allgather_async(merged.values().contiguous(), f"{name}.values", process_set)
    divisor = ranks.size() if op == Average else 1

    def result() -> torch.Tensor:
        return torch.sparse_coo_tensor(
            synchronize(indices).transpose(0, 1), synchronize(values) / divisor, tensor.shape
        )

    return result


def _choose_op(op: int | None, average: bool | None) -> int:
    """Return the operation that a program requests by `op` or by the old `average`.

    Raises:
        ValueError: both are given.
    """
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ValueError("average and op are both given: give op alone")
    warnings.warn("average= is deprecated: give op=", DeprecationWarning, stacklevel=3)
    return Average if average else Sum


def _reduce(
    kind: str,
    tensors: Tensors,
    name: str | None,
    op: int,
    factors: tuple[float, float],
    process_set: Any,
    *,
    grouped: bool = False,
    in_place: bool = False,
) -> int:
    require_all_ranks(process_set)
    if op == Adasum:
        raise needs_horovod(f"hvd.{kind}(op=hvd.Adasum)")
    if op not in OPERATIONS:
        raise ValueError(f"op={op!r}: use hvd.Average, Sum, Min, Max or Product")
    hosts = on_host(kind, tensors)
    for tensor in tensors:
        if dtype_name(tensor.dtype) not in DTYPES:
            raise ValueError(f"hvd.{kind} of {tensor.dtype}: this type is not supported")
    job = ranks.job()
    world = job.topology.world
    results = [
        host if in_place or host is not tensor else tensor.detach().clone()
        for host, tensor in zip(hosts, tensors, strict=True)
    ]

    def run(own: Sequence[Any]) -> Any:
        del own
        job.reductions.reduce(results, op, *factors)
        if kind == "reducescatter":
            results[:] = [
                tensor[_rows(tensor, world.rank, world.size)].clone() for tensor in results
            ]
        return results

    give_back = give_back_all(tensors, grouped=grouped, in_place=in_place)
    facts = {
        "type": [dtype_name(tensor.dtype) for tensor in tensors],
        "shape": [tuple(tensor.shape) for tensor in tensors],
        "op": op,
        "prescale_factor": factors[0],
        "postscale_factor": factors[1],
    }
    problem = without_rows(tensors) if kind == "reducescatter" else ""
    return ask(Request(name or next_name(kind), kind, facts, problem=problem), run, give_back)


def _rows(tensor: torch.Tensor, rank: int, size: int) -> slice:
    """Return a rank's rows: if they do not divide evenly, the first ranks have one more."""
    each, more = divmod(len(tensor), size)
    begin = rank * each + min(rank, more)
    return slice(begin, begin + each + (rank < more))
