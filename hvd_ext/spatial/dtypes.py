"""The dtypes of sums and of results."""

from __future__ import annotations

import torch
from torch import Tensor

from hvd_ext.spatial.tensor import SpatialTensor
from hvd_ext.spatial.unsupported import UnsupportedError


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for sums of `dtype`: fp16 sums overflow, and bf16 sums stop growing."""
    return torch.promote_types(dtype, torch.float32)


def result_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype of a convolution of `tensor`, autocast included."""
    kind = tensor.device.type
    if kind == "meta" or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor.dtype
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype


def check_dtype(what: str, x: SpatialTensor, weight: Tensor) -> None:
    """Refuse a weight of another dtype, which torch refuses only on ranks that have cells."""
    if weight.dtype != x.dtype and result_dtype(weight) != result_dtype(x.local):
        raise UnsupportedError(
            f"{what} of {x.dtype} with a weight of {weight.dtype}: they must be the same"
        )
