"""Tensors, and the memory that is communicated for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch

from hvd_ext.errors import UsageError
from hvd_ext.shm.block import Block


def check(name: str, tensors: Iterable[torch.Tensor], *, may_be_sparse: bool = False) -> None:
    """Refuse tensors that the ranks' memory cannot carry.

    Args:
        name: the collective's name, for errors.
        tensors: the collective's arguments.
        may_be_sparse: whether sparse tensors in coordinate format are also served.

    Raises:
        UsageError: a tensor is sparse or not on the CPU.
    """
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise UsageError(
                f"{name} of a tensor on {tensor.device}: hvd_ext serves the CPU; with torch 2.14 "
                "or newer, init_process_group('cpu:hvd_ext,cuda:nccl') has NCCL serve the GPU"
            )
        sparse = tensor.layout == torch.sparse_coo
        if tensor.layout != torch.strided and not (sparse and may_be_sparse):
            raise UsageError(f"{name} of a sparse tensor: call to_dense() first")


def check_written(name: str, tensors: Iterable[torch.Tensor]) -> None:
    """Refuse tensors that cannot hold a result.

    Args:
        name: the collective's name, for errors.
        tensors: those that it writes.

    Raises:
        UsageError: two elements of a tensor share memory.
    """
    for tensor in tensors:
        if not tensor.is_sparse and not tensor.is_contiguous() and _overlaps(tensor):
            raise UsageError(
                f"{name} into a tensor of shape {tuple(tensor.shape)} and strides "
                f"{tensor.stride()}, whose elements share memory: give it a clone()"
            )


def _overlaps(tensor: torch.Tensor) -> bool:
    dims = sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1)
    # This dimension's elements must begin behind those of dimensions with shorter strides.
    ends = [0]
    for stride, count in dims:
        ends.append(ends[-1] + stride * (count - 1))
    return any(stride <= end for (stride, _), end in zip(dims, ends, strict=False))


def read(tensor: torch.Tensor) -> Block:
    """Return a tensor's elements in their order, copied if memory has another order."""
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        tensor = tensor.detach().contiguous().resolve_conj().resolve_neg()
    return Block(tensor.data_ptr(), tensor.nbytes, tensor)


def write_back(tensor: torch.Tensor, block: Block) -> None:
    """Copy the present content of its block, made by `read`, into a tensor."""
    if block.owner is not tensor:
        tensor.detach().copy_(cast("torch.Tensor", block.owner))
