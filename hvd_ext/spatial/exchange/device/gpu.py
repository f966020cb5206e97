"""Which of torch's tensors lie on a GPU, and where: a function each, all that is torch's own."""

from __future__ import annotations

import torch
from torch import Tensor


def is_on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda


def ordinal_of(tensor: Tensor) -> int:
    """The number of a tensor's GPU in this process."""
    return tensor.get_device()


def current_stream(ordinal: int) -> int:
    """The address of the stream in which torch works on a GPU now."""
    stream: int = torch.cuda.current_stream(ordinal).cuda_stream
    return stream


def synchronize(tensor: Tensor) -> None:
    """Wait until a tensor's GPU has done all that this process gave it."""
    torch.cuda.synchronize(tensor.device)


def address_of(tensor: Tensor) -> int:
    return tensor.data_ptr()
