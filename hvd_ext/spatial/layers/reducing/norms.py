"""Group, instance and layer normalization over the whole space of a sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hvd_ext.spatial.dtypes import accumulate_dtype, check_dtype
from hvd_ext.spatial.exchange.assemble import layout
from hvd_ext.spatial.exchange.replicated import sum_over_space, to_partitioned
from hvd_ext.spatial.layers.operands import aligned, over, unsplit
from hvd_ext.spatial.tensor import SpatialTensor, implements
from hvd_ext.spatial.unsupported import UnsupportedError
from hvd_ext.units import counted


def normalise(local: Tensor, dims: Sequence[int], count: int, space: Any, eps: float) -> Tensor:
    """Subtract the mean over `dims` and the space group, divide by the deviation.

    The variance is computed after subtracting the mean: two sums, and no cancellation.
    """
    dims = tuple(dims)
    wide = local.to(accumulate_dtype(local.dtype))
    mean = sum_over_space(wide.sum(dims, keepdim=True), space) / count
    centred = wide - mean
    variance = sum_over_space(centred.square().sum(dims, keepdim=True), space) / count
    return (centred * torch.rsqrt(variance + eps)).to(local.dtype)


@implements(F.group_norm)
def group_norm(
    x: SpatialTensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> SpatialTensor:
    """Normalize over each group of channels and the whole space."""
    x = over(x, x.ndim - 2, "group_norm")
    batch, channels = x.lead
    if num_groups < 1 or channels % num_groups:
        raise UnsupportedError(
            f"group_norm of {counted(channels, 'channel')} in {counted(num_groups, 'group')}: use "
            "a divisor"
        )
    if x.shape.numel() == num_groups:
        raise UnsupportedError(
            f"group_norm of shape {tuple(x.shape)}: more than 1 value per group needed"
        )
    local = x.local.reshape(batch, num_groups, channels // num_groups, *x.local.shape[2:])
    count = channels // num_groups * math.prod(x.extents)
    normal = normalise(local, range(2, local.ndim), count, x.grid.space, eps)
    normal = normal.reshape(x.local.shape)
    kept = layout(normal)
    if batch == 1 and kept != torch.contiguous_format:
        # The stride that reshape gives to one sample misleads torch's batch norm in backward.
        normal = normal.clone(memory_format=kept)
    normal = _affine(normal, weight, bias, x)
    return x.like(normal.to(_autocast_dtype(x)))


@implements(F.instance_norm)
def instance_norm(
    x: SpatialTensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> SpatialTensor:
    """Normalize each channel of a sample over the whole space."""
    if running_mean is not None or running_var is not None:
        raise UnsupportedError(
            "instance_norm with track_running_stats=True is not supported: use False, or batch_norm"
        )
    if not use_input_stats:
        raise UnsupportedError(
            "instance_norm with use_input_stats=False: running statistics are not supported"
        )
    x = over(x, x.ndim - 2, "instance_norm")
    count = math.prod(x.extents)
    if count == 1:
        raise UnsupportedError(f"instance_norm of extents {x.extents}: more than 1 cell is needed")
    normal = normalise(x.local, range(2, x.ndim), count, x.grid.space, eps)
    return x.like(_affine(normal, weight, bias, x).to(x.dtype))


@implements(F.linear)
def linear(x: SpatialTensor, weight: Tensor, bias: Tensor | None = None) -> SpatialTensor:
    """A linear layer over the last dim, which must not be split."""
    unsplit(x, -1, "linear")
    check_dtype("linear", x, weight)
    weight = to_partitioned(weight, x.grid.space)
    bias = None if bias is None else to_partitioned(bias, x.grid.space)
    return x.like(F.linear(x.local, weight, bias))


@implements(F.layer_norm)
def layer_norm(
    x: SpatialTensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> SpatialTensor:
    """Normalize over the last dims, which include all split ones or none."""
    dims = range(x.ndim - len(normalized_shape), x.ndim)
    fits = bool(dims) and tuple(x.shape[dims.start :]) == tuple(normalized_shape)
    if fits and not set(x.split_dims) & set(dims):
        weight, bias = (
            None if given is None else to_partitioned(given, x.grid.space)
            for given in (weight, bias)
        )
        return x.like(F.layer_norm(x.local, normalized_shape, weight, bias, eps))
    if not fits or not set(x.split_dims) <= set(dims):
        raise UnsupportedError(
            f"layer_norm over {tuple(normalized_shape)} of {x!r}: the last dims, from the first "
            "that is split or after all that are, must be normalized together"
        )
    count = math.prod(normalized_shape)
    normal = normalise(x.local, dims, count, x.grid.space, eps)
    if weight is not None:
        normal = normal * aligned(weight, x)
    normal = normal if bias is None else normal + aligned(bias, x)
    return x.like(normal.to(_autocast_dtype(x)))


def _autocast_dtype(x: SpatialTensor) -> torch.dtype:
    """Return the dtype of group and layer norm: x's, or a wide one under autocast on CUDA."""
    wide = x.is_cuda and torch.is_autocast_enabled("cuda")
    return accumulate_dtype(x.dtype) if wide else x.dtype


def _affine(normal: Tensor, weight: Tensor | None, bias: Tensor | None, x: SpatialTensor) -> Tensor:
    shape = (1, -1, *(1,) * (normal.ndim - 2))
    if weight is not None:
        normal = normal * to_partitioned(weight, x.grid.space).view(shape)
    return normal if bias is None else normal + to_partitioned(bias, x.grid.space).view(shape)
