"""Tensors as the memory that is communicated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from hvd_ext.errors import UsageError

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


def memory(tensor: torch.Tensor) -> Array:
    """A contiguous tensor's memory, 1-D, as uint8."""
    flat: Array = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return flat


def read(tensor: torch.Tensor) -> Array:
    """A tensor's elements in their order, 1-D, as uint8; a copy where they do not lie so."""
    return memory(tensor.detach().contiguous())


@contextmanager
def written(tensor: torch.Tensor) -> Iterator[Array]:
    """The memory of a tensor, as `read` gives it, that is to be changed."""
    held = tensor.detach().contiguous()
    yield memory(held)
    if held.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(held)


def split(array: Array, tensors: Sequence[torch.Tensor]) -> None:
    """Have tensors hold what lies in `array`, one behind the other."""
    begin = 0
    for tensor in tensors:
        with written(tensor) as part:
            part[:] = array[begin : begin + len(part)]
        begin += tensor.nbytes
