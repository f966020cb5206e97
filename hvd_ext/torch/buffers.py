"""Tensors that are reduced in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvd_ext.allreduce import buffers
from hvd_ext.errors import UsageError
from hvd_ext.tensors import dtype_name
from hvd_ext.torch import fallback
from hvd_ext.torch.job import lifecycle


def empty(shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Allocate a tensor that every rank of the node maps; collective.

    `plan_allreduce` of it, or of the same contiguous part of it on every rank, copies nothing.
    Otherwise, and on several nodes, it is a tensor like any other; its `numpy()` is the same
    memory.

    Args:
        shape: the same on every rank.
        dtype: floating point or integer, of at most 64 bits.

    Returns:
        A tensor on the CPU whose elements have no values yet. Its memory is freed with the last of
        the tensor, its views and its plans.

    Raises:
        UsageError: a dtype that is not reduced, or Horovod does not run on MPI.
        StallError: ranks did not reach this in time; names them.
        HvdExtError: on every rank, if the ranks of some node cannot share memory.
    """
    reason = fallback.reason_against_job()
    if reason is not None:
        raise UsageError(f"empty: {reason}; use torch.empty")
    topology = lifecycle.topology()
    array: Any = buffers.empty(topology, shape, dtype_name(dtype))
    # Some versions of torch lack uint16, in which numpy holds bfloat16.
    flat = torch.from_numpy(array.reshape(-1).view("uint8"))
    return flat.view(dtype).view(array.shape)
