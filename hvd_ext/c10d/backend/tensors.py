"""Tensors as the memory that is communicated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from hvd_ext.errors import UsageError
from hvd_ext.tensors import as_bytes

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array


def check(name: str, tensors: Iterable[torch.Tensor], *, may_be_sparse: bool = False) -> None:
    """Refuse what the ranks' memory cannot carry.

    Args:
        name: the collective's, for errors.
        tensors: that it is called with.
        may_be_sparse: it serves sparse tensors in coordinate format, too.

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
        name: the collective's, for errors.
        tensors: that it writes.

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
    # Behind the elements of the dimensions with shorter strides.
    ends = [0]
    for stride, count in dims:
        ends.append(ends[-1] + stride * (count - 1))
    return any(stride <= end for (stride, _), end in zip(dims, ends, strict=False))


def read(tensor: torch.Tensor) -> Array:
    """A tensor's elements in their order, 1-D, as uint8; a copy where they do not lie so."""
    return as_bytes(_plain(tensor))


@contextmanager
def written(*tensors: torch.Tensor) -> Iterator[list[Array]]:
    """The memory of tensors, each as `read` gives it, that is to be changed."""
    held = [_plain(tensor) for tensor in tensors]
    yield [as_bytes(one) for one in held]
    for tensor, one in zip(tensors, held, strict=True):
        if one.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(one)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements in their order, without a sign or a conjugation still to be applied."""
    return tensor.detach().contiguous().resolve_conj().resolve_neg()
