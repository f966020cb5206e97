"""Transposed convolutions: each output's owner fetches the inputs that add to it.

The plan is that of a convolution with inputs and outputs swapped (geometry.Transposed),
so nothing is scattered: outputs that a rank does not own are cut off, and their owner computes
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hvd_ext.spatial.dtypes import check_dtype, result_dtype
from hvd_ext.spatial.exchange.replicated import to_partitioned
from hvd_ext.spatial.geometry.partition import Box, lengths
from hvd_ext.spatial.geometry.windows import Transposed
from hvd_ext.spatial.layers.windows.conv import batched, per_dim
from hvd_ext.spatial.layers.windows.windowed import windowed
from hvd_ext.spatial.tensor import SpatialTensor, global_shape, implements
from hvd_ext.spatial.unsupported import UnsupportedError

TRANSPOSED = {1: torch.conv_transpose1d, 2: torch.conv_transpose2d, 3: torch.conv_transpose3d}


def convolve_transposed(
    dims: int,
    x: SpatialTensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> SpatialTensor:
    """Apply a transposed convolution over the last `dims` dims; arguments as torch's.

    Args:
        dims: 1, 2 or 3.
        x: (N, C, *extents).
        weight: (C, C_out / groups, *kernel), replicated.
        bias: (C_out,), replicated.
        stride: step between the outputs of neighboring inputs.
        padding: outputs cut off at both borders of the whole sample.
        output_padding: additional outputs at the end of the whole sample.
        groups: number of groups of channels.
        dilation: step between taps.

    Raises:
        UnsupportedError: torch would not accept these arguments for the whole either.
    """
    function = TRANSPOSED[dims]
    x = batched(x, dims, f"conv_transpose{dims}d")
    check_dtype(f"conv_transpose{dims}d", x, weight)
    stride, padding = per_dim(stride, dims, 1), per_dim(padding, dims)
    dilation, output_padding = per_dim(dilation, dims, 1), per_dim(output_padding, dims)
    shape = global_shape(
        function,
        (tuple(x.shape), tuple(weight.shape), None if bias is None else tuple(bias.shape)),
        (stride, padding, output_padding, groups, dilation),
    )
    if 0 in shape[2:]:
        # torch also raises this, but not on the meta device.
        raise UnsupportedError(
            f"conv_transpose{dims}d of extents {x.extents}: the output would have extents "
            f"{tuple(shape[2:])}; use less padding"
        )
    if any(
        more >= max(step, spread)
        for more, step, spread in zip(output_padding, stride, dilation, strict=True)
    ):
        # Nor this.
        raise UnsupportedError(
            f"conv_transpose{dims}d with output_padding={output_padding}: it must be smaller than "
            f"stride={stride} or dilation={dilation}"
        )
    windows = [
        Transposed(*numbers)
        for numbers in zip(weight.shape[2:], stride, padding, dilation, strict=True)
    ]
    weight = to_partitioned(weight, x.grid.space)
    bias = None if bias is None else to_partitioned(bias, x.grid.space)

    def operation(block: Tensor, outputs: Box, inputs: Box) -> Tensor:
        if block.numel() == 0:
            # Outputs that no input reaches; they depend on the weight, as all others do.
            full = _nothing(block) + weight.reshape(-1)[:0].sum()
            crops = [bound for size in reversed(lengths(outputs)) for bound in (0, size)]
        else:
            full = function(block, weight, None, stride, 0, 0, groups, dilation)
            crops = []
            for window, (begin, end), (first, last) in reversed(
                list(zip(windows, outputs, inputs, strict=True))
            ):
                # The begin and the end of the block's outputs.
                low = first * window.stride - window.padding
                high = (last - 1) * window.stride - window.padding + window.span
                crops += [low - begin, end - high]
        # Outputs that no input reaches are zeros, and outputs that are not owned are cut off.
        result = F.pad(full, crops)
        if bias is not None:
            result = result + bias.to(result.dtype).view(-1, *(1,) * dims)
        return result

    def _nothing(local: Tensor) -> Tensor:
        return local.new_empty((*shape[:2], *(0,) * dims), dtype=result_dtype(local))

    ties = [weight] if bias is None else [weight, bias]
    return windowed(x, windows, shape[2:], operation, ties=ties, empty=_nothing, keeps_layout=False)


def _handler(dims: int) -> Any:
    def handler(x: SpatialTensor, weight: Tensor, *args: Any, **kwargs: Any) -> SpatialTensor:
        return convolve_transposed(dims, x, weight, *args, **kwargs)

    return handler


for _dims, _function in TRANSPOSED.items():
    implements(_function)(_handler(_dims))
