"""`use`: the all-gather and reduce-scatter of FSDP2 through the memory of each node."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from hvd_ext.c10d.backend.reported import Reported
from hvd_ext.c10d.backend.tensors import read
from hvd_ext.c10d.collectives import about, describe
from hvd_ext.c10d.ranks import limit_of, topology_of
from hvd_ext.c10d.watch import begin_without_mpi
from hvd_ext.dtypes import DTYPES
from hvd_ext.engine.compared import one_line
from hvd_ext.engine.placed import Placed
from hvd_ext.engine.several_nodes import SeveralNodes
from hvd_ext.errors import UsageError
from hvd_ext.events import region
from hvd_ext.shm.regions import WindowError
from hvd_ext.tensors import dtype_name

log = logging.getLogger("hvd_ext")
# None: the group's own collectives serve.
_placed: weakref.WeakKeyDictionary[dist.ProcessGroup, Reported | None] = weakref.WeakKeyDictionary()


def use(model: torch.nn.Module) -> None:
    """Make every FSDP module of a model exchange in the nodes' memory, and between nodes.

    Tensors that are not on the CPU and reductions other than sum and mean stay with the process
    group.

    Args:
        model: a model on which `torch.distributed.fsdp.fully_shard` was called.

    Raises:
        UsageError: no module of it is sharded.
    """
    found = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not found:
        raise UsageError(
            f"use() found no FSDP module in {type(model).__name__}: call fully_shard() first"
        )
    for module in found:
        # Each module has its own collectives, because modules may have different groups.
        gather: Any = _AllGather()
        scatter: Any = _ReduceScatter()
        module.set_custom_all_gather(gather)
        module.set_custom_reduce_scatter(scatter)


class _AllGather:
    """Implement torch's interface of that name."""

    def __init__(self) -> None:
        self._placed: Reported | None = None  # known from the first call on

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return _allocate(self._placed, size, dtype, device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> Any:
        self._placed = placed = _of(group) if output_tensor.device.type == "cpu" else None
        if placed is None:
            return dist.all_gather_single(output_tensor, input_tensor, group, async_op)
        with _told(placed):
            what = about("all_gather()", input_tensor.dtype)
            placed.expect("FSDP's all-gather", limit_of(group)[0], what)
            placed.all_gather(read(output_tensor), read(input_tensor))
        return None


class _ReduceScatter:
    """Implement torch's interface of that name."""

    def __init__(self) -> None:
        self._placed: Reported | None = None  # known from the first call on
        self._has_input = False

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        # A collective's second buffer is its output, which stays: it becomes the gradients.
        placed = None if self._has_input else self._placed
        self._has_input = True
        return _allocate(placed, size, dtype, device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        self._has_input = False
        dtype = dtype_name(input_tensor.dtype)
        served = op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG) and dtype in DTYPES
        self._placed = placed = (
            _of(group) if served and output_tensor.device.type == "cpu" else None
        )
        if placed is None:
            return dist.reduce_scatter_single(output_tensor, input_tensor, op, group, async_op)
        average = op == dist.ReduceOp.AVG
        what = about("reduce_scatter()", input_tensor.dtype, "AVG" if average else "SUM")
        with _told(placed):
            placed.expect("FSDP's reduce-scatter", limit_of(group)[0], what)
            scale = 1.0 / placed.size if average else 1.0
            placed.reduce_scatter(read(output_tensor), read(input_tensor), dtype, scale, "sum")
        return None


@contextmanager
def _told(placed: Reported) -> Iterator[None]:
    """Let an error of this rank end the wait of the others."""
    try:
        with region("exposed", kind="communication"):
            yield
    except BaseException as error:
        placed.fail(one_line(error))
        raise


def _allocate(
    placed: Reported | None,
    size: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    memory = None
    carrier = None if placed is None else placed.carrier
    if isinstance(carrier, Placed) and torch.device(device).type == "cpu":
        memory = carrier.take(math.prod(size) * dtype.itemsize)
    if memory is None:
        return torch.empty(*size, dtype=dtype, device=device)
    return torch.from_numpy(memory).view(dtype).view(*size)


def _of(group: dist.ProcessGroup) -> Reported | None:
    """Return the collectives of a group; the first call is collective over it."""
    if group not in _placed:
        _placed[group] = _make(group)
    return _placed[group]


def _make(group: dist.ProcessGroup) -> Reported | None:
    topology = topology_of(group)
    begin_without_mpi(dist.get_rank(), dist.get_world_size(), "hvd_ext")
    try:
        kind = Placed if topology.one_node else SeveralNodes
        limit_s, setting = limit_of(group)
        return Reported(kind(topology, limit_s, describe, setting))
    except WindowError as error:  # on every rank alike
        if topology.world.rank == 0:
            log.warning("hvd_ext: FSDP falls back to its own process group: %s", error)
        return None
