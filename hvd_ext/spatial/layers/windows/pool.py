"""Max and average pooling: cells outside of the sample are padding, a neighbor's are not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hvd_ext.spatial.dtypes import accumulate_dtype
from hvd_ext.spatial.geometry.partition import Box, lengths
from hvd_ext.spatial.geometry.windows import Sliding, Unsplit, Window
from hvd_ext.spatial.layers.windows.conv import batched, per_dim
from hvd_ext.spatial.layers.windows.windowed import Linear, windowed
from hvd_ext.spatial.tensor import SpatialTensor, global_shape, implements
from hvd_ext.spatial.unsupported import UnsupportedError

Numbers = int | Sequence[int]

MAX_POOLS: dict[int, Any] = {1: torch.max_pool1d, 2: torch.max_pool2d, 3: torch.max_pool3d}
# The names of F.max_pool2d, which depend on torch's release.
_PUBLIC = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
MAX_POOLS_WITH_INDICES: dict[int, Any] = {
    1: F.max_pool1d_with_indices,
    2: F.max_pool2d_with_indices,
    3: F.max_pool3d_with_indices,
}
AVERAGE_POOLS: dict[int, Any] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def _max_pool(dims: int, with_indices: bool) -> Any:
    def handler(
        x: SpatialTensor,
        kernel_size: Numbers,
        stride: Numbers | None = None,
        padding: Numbers = 0,
        dilation: Numbers = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        values = max_pool(dims, x, kernel_size, stride, padding, dilation, ceil_mode)
        if not (with_indices or return_indices):
            return values
        return values, max_pool(
            dims, x, kernel_size, stride, padding, dilation, ceil_mode, indices=True
        )

    return handler


def _average_pool(dims: int) -> Any:
    def handler(
        x: SpatialTensor,
        kernel_size: Numbers,
        stride: Numbers | None = None,
        padding: Numbers = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> SpatialTensor:
        return average_pool(
            dims, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
        )

    return handler


for _dims in (1, 2, 3):
    implements(MAX_POOLS[_dims], _PUBLIC[_dims])(_max_pool(_dims, with_indices=False))
    implements(MAX_POOLS_WITH_INDICES[_dims])(_max_pool(_dims, with_indices=True))
    implements(AVERAGE_POOLS[_dims])(_average_pool(_dims))


def max_pool(
    dims: int,
    x: SpatialTensor,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
    indices: bool = False,
) -> SpatialTensor:
    """Max-pool over the last `dims` dims; arguments as torch's.

    Args:
        dims: 1, 2 or 3.
        x: (N, C, *extents).
        kernel_size: taps of the window.
        stride: its step; the kernel's size by default.
        padding: cells that never win, at the borders of the whole sample.
        dilation: step between taps.
        ceil_mode: let the last window extend beyond the end.
        indices: return the places of the maxima, as flat global indices, instead of the maxima.

    Raises:
        UnsupportedError: torch would not take these arguments for the whole either.
    """
    x = batched(x, dims, f"max_pool{dims}d")
    kernel = per_dim(kernel_size, dims)
    step = kernel if stride is None or stride == [] else per_dim(stride, dims)
    pad, spread = per_dim(padding, dims), per_dim(dilation, dims)
    shape = global_shape(MAX_POOLS[dims], (tuple(x.shape),), (kernel, step, pad, spread, ceil_mode))
    windows, own = _windows(
        x, [Sliding(*numbers) for numbers in zip(kernel, step, pad, spread, strict=True)]
    )
    fill = -math.inf if x.dtype.is_floating_point else torch.iinfo(x.dtype).min

    def operation(block: Tensor, outputs: Box, inputs: Box) -> Tensor:
        if not indices:
            values: Tensor = MAX_POOLS[dims](block, kernel, step, own, spread, ceil_mode)
            return values
        flat = MAX_POOLS_WITH_INDICES[dims](block, kernel, step, own, spread, ceil_mode)[1]
        return _global_index(flat, inputs, x.extents, spread)

    if not indices:
        return windowed(x, windows, shape[2:], operation, fill)

    def empty(local: Tensor) -> Tensor:
        return local.new_empty((*shape[:2], *(0,) * dims), dtype=torch.int64)

    with torch.no_grad():
        return windowed(x, windows, shape[2:], operation, fill, empty=empty)


def _global_index(
    flat: Tensor, inputs: Box, extents: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """Convert flat indices into a block to flat indices into the whole."""
    total, scale = torch.zeros_like(flat), 1
    for (begin, _), size, extent, step in reversed(
        list(zip(inputs, lengths(inputs), extents, dilation, strict=True))
    ):
        place = flat % size + begin
        # If no cell beats the padding, torch returns the first tap within the sample.
        total += torch.where(place < 0, place % step, place) * scale
        flat = flat // size
        scale *= extent
    return total


def average_pool(
    dims: int,
    x: SpatialTensor,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> SpatialTensor:
    """Average-pool over the last `dims` dims; arguments as torch's.

    The window is summed, then divided by torch's divisor for it. In 16 bits it is averaged, and
    corrected where torch's divisor differs.

    Args:
        dims: 1, 2 or 3.
        x: (N, C, *extents).
        kernel_size: taps of the window.
        stride: its step; the kernel's size by default.
        padding: zeros at the borders of the whole sample.
        ceil_mode: let the last window extend beyond the end.
        count_include_pad: count the zeros of `padding`.
        divisor_override: divide by this instead (not in 1-D).

    Raises:
        UnsupportedError: torch would not take these arguments for the whole either.
    """
    x = batched(x, dims, f"avg_pool{dims}d")
    if not x.dtype.is_floating_point:
        raise UnsupportedError(f"avg_pool{dims}d of {x.dtype}: it takes floating-point numbers")
    kernel = per_dim(kernel_size, dims)
    step = kernel if stride is None or stride == [] else per_dim(stride, dims)
    pad = per_dim(padding, dims)
    options: tuple[Any, ...] = (kernel, step, pad, ceil_mode, count_include_pad)
    if dims > 1:
        options = (*options, divisor_override)
    shape = global_shape(AVERAGE_POOLS[dims], (tuple(x.shape),), options)
    sliding = [Sliding(*numbers) for numbers in zip(kernel, step, pad, strict=True)]
    windows, own = _windows(x, sliding)

    # The sum of many 16-bit numbers may overflow 16 bits; their mean does not.
    divided = 1 if x.dtype.itemsize >= 4 else divisor_override or math.prod(kernel)

    def total(block: Tensor, zeros: Sequence[int]) -> Tensor:
        return _sum_pool(dims, block, kernel, step, zeros, ceil_mode, divided)

    # torch pads by at most half a window; with ceil_mode, windows extend beyond the edge.
    half = [taps // 2 for taps in kernel]
    linear = None if ceil_mode else Linear(total, lambda block: total(block, own), half)
    totals = windowed(
        x, windows, shape[2:], lambda block, outputs, inputs: total(block, own), linear=linear
    )
    if divisor_override is not None:
        return totals.like(totals.local / (divisor_override / divided))
    counts = [
        _counts(window, interval, extent, count_include_pad)
        for window, interval, extent in zip(sliding, totals.box, x.extents, strict=True)
    ]
    if all(len(set(along)) == 1 for along in counts):
        return totals.like(totals.local / (math.prod(along[0] for along in counts) / divided))
    averages = totals.local / (_outer(counts, totals.local) / divided)
    return totals.like(averages.to(totals.dtype))


def _windows(x: SpatialTensor, sliding: Sequence[Sliding]) -> tuple[list[Window], list[int]]:
    """Return the windows, and the padding that torch does: that of dims that are not split.

    A block of a split dim ends with its last window, so that ceil_mode has no effect.
    """
    windows: list[Window] = []
    for window, extent, parts in zip(sliding, x.extents, x.parts, strict=True):
        windows.append(Unsplit(extent, window.padding) if parts == 1 else window)
    own = [w.padding if parts == 1 else 0 for w, parts in zip(sliding, x.parts, strict=True)]
    return windows, own


def _sum_pool(
    dims: int,
    block: Tensor,
    kernel: Sequence[int],
    step: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    divisor: int,
) -> Tensor:
    if dims == 1:
        # Only the other two accept a divisor.
        rows = _sum_pool(
            2, block.unsqueeze(-2), (1, *kernel), (1, *step), (0, *padding), ceil_mode, divisor
        )
        return rows.squeeze(-2)
    total: Tensor = AVERAGE_POOLS[dims](
        block, kernel, step, padding, ceil_mode, divisor_override=divisor
    )
    return total


def _counts(
    window: Sliding, outputs: tuple[int, int], extent: int, include_padding: bool
) -> list[int]:
    """Return the divisor of each window along one dim; cells that ceil_mode adds never count."""
    ranges = [window.input_range((output, output + 1)) for output in range(*outputs)]
    if include_padding:
        return [min(end, extent + window.padding) - begin for begin, end in ranges]
    return [min(end, extent) - max(begin, 0) for begin, end in ranges]


def _outer(counts: Sequence[Sequence[int]], like: Tensor) -> Tensor:
    """Return the product over dims, as a tensor that divides `like`."""
    wide = accumulate_dtype(like.dtype)
    product = torch.ones((), dtype=wide, device=like.device)
    for along in counts:
        product = product[..., None] * torch.tensor(along, dtype=wide, device=like.device)
    return product
