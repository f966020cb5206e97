"""Which of torch's tensors lie on a GPU, and where: a function each, all that is torch's own."""

from __future__ import annotations

import torch
from torch import Tensor

from hvd_ext.tensors import current_stream

__all__ = ["address_of", "current_stream", "is_on_gpu", "ordinal_of", "synchronize"]


def is_on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda


def ordinal_of(tensor: Tensor) -> int:
    """The number of a tensor's GPU in this process."""
    return tensor.get_device()


def synchronize(tensor: Tensor) -> None:
    """Wait until a tensor's GPU has done all that this process gave it."""
    torch.cuda.synchronize(tensor.device)


def address_of(tensor: Tensor) -> int:
    return tensor.data_ptr()
