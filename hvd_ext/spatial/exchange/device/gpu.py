"""Facts about torch's tensors on GPUs, a function each, so that only this file uses torch.cuda."""

from __future__ import annotations

import torch
from torch import Tensor

from hvd_ext.tensors import current_stream

__all__ = ["address_of", "current_stream", "is_on_gpu", "ordinal_of", "synchronize"]


def is_on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda


def ordinal_of(tensor: Tensor) -> int:
    """Return the number of a tensor's GPU in this process."""
    return tensor.get_device()


def synchronize(tensor: Tensor) -> None:
    """Wait until a tensor's GPU has done all work of this process."""
    torch.cuda.synchronize(tensor.device)


def address_of(tensor: Tensor) -> int:
    return tensor.data_ptr()
