"""`--exchange none`: the part of Horovod that trainers call, for ranks that train alone.

No gradient is exchanged, and no reduction either: each rank keeps its own tensor. That is the limit
of any exchange: the same ranks, on the same samples, at once. The agreements of ranks before,
between and after their steps (rank 0's weights, errors, results) still travel, by MPI, without
Horovod and its background thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hvd_ext.system.freed_memory import keep_freed_memory

if TYPE_CHECKING:
    from mpi4py import MPI

Average, Sum, Adasum = "average", "sum", "Adasum"
Compression = SimpleNamespace(none=None, fp16=None)

_world: MPI.Comm
_node: MPI.Comm
_cross: MPI.Comm


def init() -> None:
    """Start MPI, and keep freed memory, as hvd_ext does. A collective."""
    keep_freed_memory()
    begin()


def begin() -> None:
    """Start MPI. A collective."""
    global _world, _node, _cross
    from mpi4py import MPI

    _world = MPI.COMM_WORLD
    _node = _world.Split_type(MPI.COMM_TYPE_SHARED, key=_world.rank)
    _cross = _world.Split(color=_node.rank, key=_world.rank)


def rank() -> int:
    return _world.rank


def size() -> int:
    return _world.size


def local_rank() -> int:
    return _node.rank


def local_size() -> int:
    return _node.size


def cross_rank() -> int:
    return _cross.rank


def nccl_built() -> bool:
    return False


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer, **exchange: Any
) -> torch.optim.Optimizer:
    """The optimizer itself."""
    return optimizer


def allreduce(tensor: Tensor, name: str = "", op: str = Average) -> Tensor:
    """The rank's own tensor."""
    return tensor


def barrier() -> None:
    _world.Barrier()


def allgather_object(value: Any, name: str = "") -> list[Any]:
    """Everyone's value, by rank. A collective."""
    return list(_world.allgather(value))


def broadcast_object(value: Any, root_rank: int, name: str = "") -> Any:
    """The root's value. A collective."""
    return _world.bcast(value, root_rank)


def broadcast(tensor: Tensor, root_rank: int, name: str = "") -> Tensor:
    """The root's tensor, on this rank's device. A collective."""
    received: Tensor = _world.bcast(tensor.cpu(), root_rank)
    return received.to(tensor.device)


def broadcast_parameters(state: Mapping[str, Tensor], root_rank: int) -> None:
    """Give every rank the root's tensors. A collective."""
    for tensor in state.values():
        tensor.copy_(broadcast(tensor, root_rank))


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int) -> None:
    """Give every rank the root's optimizer state. A collective."""
    optimizer.load_state_dict(_world.bcast(optimizer.state_dict(), root_rank))
