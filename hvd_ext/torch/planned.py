"""An allreduce of one tensor that repeats, planned once."""

from __future__ import annotations

from typing import Any

import torch

from hvd_ext.allreduce.agreed import read_table
from hvd_ext.allreduce.operations import OPERATIONS
from hvd_ext.allreduce.persistent import PersistentAllreduce
from hvd_ext.errors import UsageError
from hvd_ext.tensors import dtype_name, in_numpys_dtype
from hvd_ext.torch import fallback, horovods
from hvd_ext.torch.job import lifecycle

_OPERATIONS = {getattr(horovods, name.capitalize()): name for name in OPERATIONS}


def plan_allreduce(
    tensor: torch.Tensor, op: Any = horovods.Average, *, algorithm: str | None = None
) -> PersistentAllreduce:
    """Plan the reduction of `tensor` over all ranks, in place; collective.

    Calling the plan reduces the tensor; `start()` and `wait()` do so in the background. Nothing is
    negotiated: all ranks make the same plans and call them in the same order.

    Args:
        tensor: dense and contiguous.
        op: horovod.torch's Average, Sum, Min, Max or Product.
        algorithm: name of an algorithm; by default the table's for this size.

    Returns:
        The plan: call it, or `start()` it and `wait()`.

    Raises:
        UsageError: one of these is not served, or Horovod does not run on MPI.
        StallError: ranks did not reach this in time; names them.
    """
    if op not in _OPERATIONS:
        raise UsageError(f"op {op!r}: use Average, Sum, Min, Max or Product")
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        raise UsageError(
            f"a tensor of shape {tuple(tensor.shape)}, strides {tensor.stride()} and layout "
            f"{tensor.layout}: give one that is dense and contiguous"
        )
    reason = fallback.reason_against_job()
    if reason is not None:
        raise UsageError(f"plan_allreduce: {reason}; use hvd.allreduce_")
    topology = lifecycle.topology()
    held: Any = in_numpys_dtype(tensor.detach())
    if tensor.device.type == "cpu":
        held = held.numpy()
    return PersistentAllreduce(
        topology,
        held,
        _OPERATIONS[op],
        dtype=dtype_name(tensor.dtype),
        algorithm=algorithm,
        table=read_table(topology.world),
    )
