"""3-D convolutions of one fp32 sample on a CPU, in oneDNN.

If a sample has C * D * H <= 20480, torch does not use oneDNN (`use_mkldnn` in its Convolution.cpp)
but a kernel that writes each window to memory: for 3 x 3 x 3 it takes 27 times the memory of its
input, and two to five times as long. Splitting brings layers below that limit that are above it as
a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hvd_ext.spatial.dtypes import result_dtype

_TORCHS_LIMIT = 20480
# For fewer values, converting to oneDNN's own layouts costs more than it saves.
_WORTH = 2**15


def conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """`torch.conv3d`, in oneDNN where that is faster."""
    if groups == 1 and _is_faster(x, weight):
        result: Tensor = _Convolution.apply(x, weight, bias, (stride, padding, dilation))
        return result
    return torch.conv3d(x, weight, bias, stride, padding, dilation, groups)


def _is_faster(x: Tensor, weight: Tensor) -> bool:
    height, width = weight.shape[-2:]
    return (
        x.device.type == "cpu"
        and {x.dtype, weight.dtype, result_dtype(x)} == {torch.float32}
        and x.shape[0] == 1
        and x.numel() >= _WORTH
        and x.shape[:4].numel() <= _TORCHS_LIMIT
        and max(height, width) > 1
        and min(height, width) <= 3
        and torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
    )


class _Convolution(Function):
    """Keeps its plain inputs: oneDNN's copies are made again in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, how: Any) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.how = how
        y: Tensor = torch.conv3d(x.to_mkldnn(), weight, bias, *how)
        return y.to_dense()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        inputs = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            # It will be differentiated again, which oneDNN's tensors do not support.
            y = torch.conv3d(*inputs, *ctx.how)
            leaves = [tensor for tensor, needed in zip(inputs, wanted, strict=True) if needed]
            found = iter(torch.autograd.grad(y, leaves, gradient, create_graph=True))
            return (*(next(found) if needed else None for needed in wanted), None)
        x, weight, bias = inputs
        by_x, by_weight, by_bias = torch.ops.aten.convolution_backward(
            gradient.to_mkldnn(),
            x.to_mkldnn(),
            weight,
            None if bias is None else bias.shape,
            *ctx.how,
            False,
            (0, 0, 0),
            1,
            wanted,
        )
        return by_x.to_dense() if wanted[0] else None, by_weight, by_bias, None
