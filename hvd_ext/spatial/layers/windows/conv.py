"""Convolutions in 1, 2 and 3 dims: torch's own kernel on blocks that hold their halo.

Weight and bias gradients are each shard's share (see replicated.to_partitioned).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hvd_ext.spatial.dtypes import check_dtype, result_dtype
from hvd_ext.spatial.exchange.replicated import to_partitioned
from hvd_ext.spatial.geometry.partition import Box
from hvd_ext.spatial.geometry.windows import Sliding, Unsplit, Window
from hvd_ext.spatial.layers.operands import over
from hvd_ext.spatial.layers.windows.one_dnn import conv3d
from hvd_ext.spatial.layers.windows.windowed import Linear, windowed
from hvd_ext.spatial.tensor import SpatialTensor, global_shape, implements
from hvd_ext.spatial.unsupported import UnsupportedError

CONVOLUTIONS = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
_KERNELS: dict[int, Callable[..., Tensor]] = {**CONVOLUTIONS, 3: conv3d}


def per_dim(value: int | Sequence[int], dims: int, least: int = 0) -> tuple[int, ...]:
    """Return a number for each dim, given one for all or one for each.

    Raises:
        UnsupportedError: one is below `least`.
    """
    values = (value,) if isinstance(value, int) else tuple(value)
    if values and min(values) < least:
        raise UnsupportedError(
            f"a window with {values}: its stride and dilation are at least 1, its padding 0"
        )
    return values * dims if len(values) == 1 else values


def batched(x: Any, dims: int, what: str) -> SpatialTensor:
    """Return `x` as (N, C, *extents), of which the last `dims` may be split."""
    if not isinstance(x, SpatialTensor):
        raise UnsupportedError(f"{what}: its parameters are split over ranks, but its input is not")
    if x.ndim != dims + 2:
        raise UnsupportedError(
            f"{what} of {x!r}: it takes a batch, (N, C) and {dims} dims of space"
        )
    return over(x, dims, what)


def convolve(
    dims: int,
    x: SpatialTensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> SpatialTensor:
    """Convolve over the last `dims` dims; arguments as torch's.

    Args:
        dims: 1, 2 or 3.
        x: (N, C, *extents).
        weight: (C_out, C / groups, *kernel), replicated.
        bias: (C_out,), replicated.
        stride: step of the window.
        padding: zeros at the borders of the whole sample; "same" or "valid".
        dilation: step between taps.
        groups: number of groups of channels.

    Raises:
        UnsupportedError: torch would not accept these arguments for the whole either.
    """
    x = batched(x, dims, f"conv{dims}d")
    check_dtype(f"conv{dims}d", x, weight)
    stride, dilation = per_dim(stride, dims, 1), per_dim(dilation, dims, 1)
    if not isinstance(padding, str):
        padding = per_dim(padding, dims)
    shape = global_shape(
        CONVOLUTIONS[dims],
        (tuple(x.shape), tuple(weight.shape), None if bias is None else tuple(bias.shape)),
        (stride, padding, dilation, groups),
    )
    kernel = tuple(weight.shape[2:])
    before, after = _padding(padding, kernel, dilation)
    # If a dim is not split, and its padding is equal on both sides, torch pads it.
    whole = [
        parts == 1 and low == high for parts, low, high in zip(x.parts, before, after, strict=True)
    ]
    own_padding = [low if native else 0 for low, native in zip(before, whole, strict=True)]
    windows: list[Window] = [
        Unsplit(extent, low) if native else Sliding(taps, step, low, spread)
        for native, extent, taps, step, low, spread in zip(
            whole, x.extents, kernel, stride, before, dilation, strict=True
        )
    ]
    weight = to_partitioned(weight, x.grid.space, fresh=True)
    bias = None if bias is None else to_partitioned(bias, x.grid.space)

    convolution = _KERNELS[dims]

    def operation(block: Tensor, outputs: Box, inputs: Box) -> Tensor:
        return convolution(block, weight, bias, stride, own_padding, dilation, groups)

    def empty(local: Tensor) -> Tensor:
        return local.new_empty((*shape[:2], *(0,) * dims), dtype=result_dtype(local))

    ties = [weight] if bias is None else [weight, bias]
    linear = Linear(
        lambda shard, zeros: convolution(shard, weight, bias, stride, zeros, dilation, groups),
        lambda block: convolution(block, weight, None, stride, own_padding, dilation, groups),
    )
    return windowed(
        x, windows, shape[2:], operation, ties=ties, empty=empty, linear=linear, keeps_layout=False
    )


def _handler(dims: int) -> Any:
    def handler(x: SpatialTensor, weight: Tensor, *args: Any, **kwargs: Any) -> SpatialTensor:
        return convolve(dims, x, weight, *args, **kwargs)

    return handler


for _dims, _function in CONVOLUTIONS.items():
    implements(_function)(_handler(_dims))


def _padding(
    padding: str | Sequence[int], kernel: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the zeros before and after the sample along each dim."""
    if padding == "valid":
        return (0,) * len(kernel), (0,) * len(kernel)
    if padding == "same":
        total = [spread * (taps - 1) for taps, spread in zip(kernel, dilation, strict=True)]
        # An odd zero goes to the end, as in torch.
        before = tuple(count // 2 for count in total)
        return before, tuple(count - low for count, low in zip(total, before, strict=True))
    assert not isinstance(padding, str)
    return tuple(padding), tuple(padding)
