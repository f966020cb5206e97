"""Tensors as numpy and MPI take them: the name of their type, their memory, and where they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch


def dtype_name(dtype: torch.dtype) -> str:
    """Return a type's name in numpy and DTYPES."""
    return str(dtype).removeprefix("torch.")


def current_stream(device: int) -> int:
    """Return the address of the stream in which the calling thread uses a GPU of this process."""
    address: int = torch.cuda.current_stream(device).cuda_stream
    return address


def as_bytes(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the memory of a contiguous CPU tensor, as a 1-D array of uint8."""
    array: np.ndarray[Any, np.dtype[Any]] = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return array


def in_numpys_dtype(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view in a type that numpy has: uint16 for bfloat16, which numpy lacks."""
    return tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a value: itself, or those in a nest of mappings and sequences."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (Mapping, tuple, list)):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(one)
