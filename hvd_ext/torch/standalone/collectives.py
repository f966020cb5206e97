"""Allgather, broadcast and alltoall, with a handle or in place, and with Horovod's arguments.

A name is that of the collective, the same on every rank; ranks may ask for several in different
orders. Tensors are contiguous; those on a GPU
go through pinned memory of the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvd_ext.tensors import as_bytes, dtype_name
from hvd_ext.torch.standalone import ranks
from hvd_ext.torch.standalone.coordinator import Request
from hvd_ext.torch.standalone.handles import (
    ask,
    give_back_all,
    given_back,
    next_name,
    on_host,
    require_all_ranks,
    waited_for,
)
from hvd_ext.torch.standalone.ranks import global_process_set
from hvd_ext.torch.standalone.transfers import broadcast, exchange
from hvd_ext.units import counted

Tensors = Sequence[torch.Tensor]


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: Any = global_process_set
) -> int:
    """Join the rows of all ranks' tensors, in rank order."""
    return _gather([tensor], name, process_set, grouped=False)


def grouped_allgather_async(
    tensors: Tensors, name: str | None = None, process_set: Any = global_process_set
) -> int:
    """Start an allgather of several tensors as one collective."""
    return _gather(tensors, name, process_set, grouped=True)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Any = global_process_set,
) -> int:
    """Give every rank the root's tensor, in a new tensor."""
    (host,) = on_host("broadcast", [tensor])
    held = tensor.detach().clone() if host is tensor else host
    return _broadcast(held, tensor, root_rank, name, process_set, in_place=False)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Any = global_process_set,
) -> int:
    """Give every rank the root's tensor, in place."""
    (host,) = on_host("broadcast", [tensor])
    return _broadcast(host, tensor, root_rank, name, process_set, in_place=True)


broadcast_ = waited_for(broadcast_async_)


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: Any = global_process_set,
) -> int:
    """Send some rows of a tensor to each rank.

    The result is the received rows, in rank order, and their number from each rank.

    Args:
        tensor: (rows, ...).
        splits: number of rows for each rank, in rank order; by default equal numbers. Remaining
            rows are not sent.
        name: name of the collective.
        process_set: all ranks.
    """
    require_all_ranks(process_set)
    (host,) = on_host("alltoall", [tensor])
    job, me = ranks.job(), ranks.rank()
    world = job.topology.world
    counts, problem = _counts(tensor, splits, world.size)
    dtype = splits.dtype if isinstance(splits, torch.Tensor) else torch.int32

    def run(own: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        received = [theirs[me] for theirs in own]
        output = host.new_empty((sum(received), *host.shape[1:]))
        exchange(world, _cut(host, counts), _cut(output, received))
        return output, torch.tensor(received, dtype=dtype)

    def give_back(found: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return given_back(found[0], tensor, in_place=False), found[1]

    facts = {"type": dtype_name(tensor.dtype), "shape of a row": tuple(tensor.shape[1:])}
    request = Request(name or next_name("alltoall"), "alltoall", facts, counts, problem)
    return ask(request, run, give_back)


def _gather(tensors: Tensors, name: str | None, process_set: Any, grouped: bool) -> int:
    require_all_ranks(process_set)
    hosts = on_host("allgather", tensors)
    world = ranks.job().topology.world
    problem = without_rows(tensors)
    counts = [0 if problem else len(tensor) for tensor in tensors]

    def run(own: Sequence[Any]) -> Any:
        outputs = []
        for host, rows in zip(hosts, zip(*own, strict=True), strict=True):
            output = host.new_empty((sum(rows), *host.shape[1:]))
            exchange(world, [as_bytes(host)] * world.size, _cut(output, rows))
            outputs.append(output)
        return outputs

    give_back = give_back_all(tensors, grouped=grouped, in_place=False)
    facts = {
        "type": [dtype_name(tensor.dtype) for tensor in tensors],
        "shape of a row": [tuple(tensor.shape[1:]) for tensor in tensors],
    }
    request = Request(name or next_name("allgather"), "allgather", facts, counts, problem)
    return ask(request, run, give_back)


def _broadcast(
    host: torch.Tensor,
    tensor: torch.Tensor,
    root: int,
    name: str | None,
    process_set: Any,
    *,
    in_place: bool,
) -> int:
    require_all_ranks(process_set)
    world = ranks.job().topology.world
    problem = ""
    if not 0 <= root < world.size:
        problem = f"root_rank={root}: the ranks are 0 to {world.size - 1}"

    def run(own: Sequence[Any]) -> torch.Tensor:
        del own
        broadcast(world, as_bytes(host), root)
        return host

    facts = {"type": dtype_name(tensor.dtype), "shape": tuple(tensor.shape), "root_rank": root}

    def give_back(found: torch.Tensor) -> torch.Tensor:
        return given_back(found, tensor, in_place=in_place)

    request = Request(name or next_name("broadcast"), "broadcast", facts, problem=problem)
    return ask(request, run, give_back)


def _counts(tensor: torch.Tensor, splits: Any, size: int) -> tuple[list[int], str]:
    """Return the number of rows for each rank, and why that is not possible."""
    if problem := without_rows([tensor]):
        return [], problem
    rows = len(tensor)
    if splits is None:
        if rows % size:
            return (
                [],
                f"{counted(rows, 'row')} for {size} ranks: give splits, or a multiple of {size} "
                "rows",
            )
        return [rows // size] * size, ""
    given = torch.as_tensor(splits).cpu()
    if given.is_floating_point() or given.dim() != 1 or len(given) != size:
        return [], f"splits={splits!r}: give one integer for each of {size} ranks"
    counts = [int(count) for count in given]
    if min(counts) < 0 or sum(counts) > rows:
        return [], f"splits={counts} for {rows} rows: give numbers of rows that add up to no more"
    return counts, ""


def without_rows(tensors: Tensors) -> str:
    """Return why the rows of these tensors cannot be exchanged; "" if they can."""
    if any(tensor.dim() == 0 for tensor in tensors):
        return "a tensor without dimensions has no rows: give tensor.reshape(1)"
    return ""


def _cut(tensor: torch.Tensor, counts: Sequence[int]) -> list[Any]:
    """Return the memory of each rank's rows, in rank order, and then of remaining rows."""
    rows = tensor.detach()[: sum(counts)]
    return [as_bytes(part) for part in torch.split(rows, list(counts))]
