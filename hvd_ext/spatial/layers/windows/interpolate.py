"""Interpolation and pixel shuffle: each output has a list of the cells that it is made of."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hvd_ext.spatial.dtypes import accumulate_dtype
from hvd_ext.spatial.geometry.partition import Box
from hvd_ext.spatial.geometry.windows import Explicit, Sliding
from hvd_ext.spatial.layers.windows.adaptive_pool import adaptive_pool
from hvd_ext.spatial.layers.windows.conv import batched
from hvd_ext.spatial.layers.windows.windowed import windowed
from hvd_ext.spatial.tensor import SpatialTensor, global_shape, implements
from hvd_ext.spatial.unsupported import UnsupportedError

LINEAR = {"linear": 1, "bilinear": 2, "trilinear": 3}


@implements(F.interpolate)
def interpolate(
    input: SpatialTensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> SpatialTensor | Tensor:
    """Resample to another extent; arguments as torch's.

    Raises:
        UnsupportedError: a mode other than nearest, nearest-exact, linear, bilinear, trilinear and
            area, or antialias.
    """
    dims = input.ndim - 2
    x = batched(input, dims, "interpolate")
    if antialias or mode not in ("nearest", "nearest-exact", "area", *LINEAR):
        raise UnsupportedError(
            f"interpolate with mode={mode!r}, antialias={antialias}: nearest, nearest-exact, "
            "linear, bilinear, trilinear or area, without antialias"
        )
    if LINEAR.get(mode, dims) != dims:
        raise UnsupportedError(
            f"interpolate with mode={mode!r} in {dims} dims: the mode is for {LINEAR[mode]}"
        )
    if align_corners is not None and mode not in LINEAR:
        raise UnsupportedError(
            f"interpolate with mode={mode!r}, align_corners={align_corners}: leave it out"
        )
    if isinstance(scale_factor, Sequence):
        scale_factor = tuple(scale_factor)
    asked = size if size is None or isinstance(size, int) else tuple(size)
    sizes = global_shape(
        F.interpolate,
        ((1, 1, *x.extents),),
        (asked, scale_factor, "nearest", None, recompute_scale_factor),
    )[2:]
    if min(*sizes, *x.extents) < 1:
        raise UnsupportedError(
            f"interpolate of extents {x.extents} to {sizes}: use at least 1 cell per dim"
        )
    scales: Sequence[float | None] = (None,) * dims
    if scale_factor is not None and not recompute_scale_factor:
        scales = scale_factor if isinstance(scale_factor, tuple) else (scale_factor,) * dims
    if mode == "area":
        return adaptive_pool(dims, x, sizes, largest=False)
    if mode in LINEAR:
        if not x.dtype.is_floating_point:
            raise UnsupportedError(
                f"interpolate with mode={mode!r} of {x.dtype}: only nearest takes it"
            )
        return _linear(x, sizes, scales, bool(align_corners))
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    chosen = [
        _nearest(extent, count, scale, mode, wide)
        for extent, count, scale in zip(x.extents, sizes, scales, strict=True)
    ]
    windows = [Explicit(cells, tuple(cell + 1 for cell in cells)) for cells in chosen]

    def operation(block: Tensor, outputs: Box, inputs: Box) -> Tensor:
        for dim, (cells, (begin, end), (first, _)) in enumerate(
            zip(chosen, outputs, inputs, strict=True), start=2
        ):
            places = torch.tensor(cells[begin:end], device=block.device) - first
            block = block.index_select(dim, places)
        return block

    return windowed(x, windows, sizes, operation)


@functools.lru_cache(maxsize=256)
def _nearest(
    extent: int, count: int, scale: float | None, mode: str, wide: torch.dtype
) -> tuple[int, ...]:
    """Return the cell that each output copies: torch's own choice, rounding included.

    torch has two kernels, and chooses by dims, size, layout and number of threads; in 1-D it uses
    one forward and the other backward.

    Raises:
        UnsupportedError: they choose differently.
    """

    def chosen(cells: Tensor) -> list[float]:
        others = cells.ndim - 3
        if scale is None:
            made = F.interpolate(cells, size=(*(1,) * others, count), mode=mode)
        else:
            made = F.interpolate(cells, scale_factor=[*(1.0,) * others, scale], mode=mode)
        found: list[float] = made.flatten().tolist()
        return found

    cells = torch.arange(extent, dtype=wide).view(1, 1, extent)
    found = chosen(cells)
    if chosen(cells.float().unsqueeze(2)) != found:
        raise UnsupportedError(
            f"interpolate with mode={mode!r} of {extent} to {count} cells in {wide}: which of them "
            "torch takes depends on the tensor's size; give size, or a whole scale_factor"
        )
    return tuple(map(int, found))


def _linear(
    x: SpatialTensor, sizes: Sequence[int], scales: Sequence[float | None], align_corners: bool
) -> SpatialTensor:
    weighed = [
        _neighbours(extent, count, scale, align_corners)
        for extent, count, scale in zip(x.extents, sizes, scales, strict=True)
    ]
    windows = [
        Explicit(tuple(low for low, _, _ in along), tuple(high + 1 for _, high, _ in along))
        for along in weighed
    ]

    def operation(block: Tensor, outputs: Box, inputs: Box) -> Tensor:
        # Weights are computed in single precision or better, as in torch.
        wide = accumulate_dtype(block.dtype)
        for dim, (along, (begin, end), (first, _)) in enumerate(
            zip(weighed, outputs, inputs, strict=True), start=2
        ):
            own = along[begin:end]
            lows = torch.tensor([low - first for low, _, _ in own], device=block.device)
            highs = torch.tensor([high - first for _, high, _ in own], device=block.device)
            shape = (-1, *(1,) * (block.ndim - dim - 1))
            share = torch.tensor([part for *_, part in own], dtype=wide, device=block.device)
            share = share.view(shape)
            block = block.index_select(dim, lows) * (1 - share) + (
                block.index_select(dim, highs) * share
            )
        return block.to(x.dtype)

    return windowed(x, windows, sizes, operation)


@functools.lru_cache(maxsize=256)
def _neighbours(
    extent: int, count: int, scale: float | None, align_corners: bool
) -> tuple[tuple[int, int, float], ...]:
    """Return for each output the cells below and above it, and the weight of the one above."""
    if align_corners:
        step = (extent - 1) / (count - 1) if count > 1 else 0.0
    else:
        step = 1 / scale if scale else extent / count
    found = []
    for output in range(count):
        place = step * output if align_corners else max(0.0, step * (output + 0.5) - 0.5)
        low = min(int(place), extent - 1)
        high = min(low + 1, extent - 1)
        found.append((low, high, min(max(place - low, 0.0), 1.0)))
    return tuple(found)


@implements(F.pixel_shuffle, torch.pixel_shuffle)
def pixel_shuffle(x: SpatialTensor, upscale_factor: int) -> SpatialTensor:
    """Channels become cells: (N, C r^2, H, W) -> (N, C, r H, r W)."""
    r = upscale_factor
    x = batched(x, 2, "pixel_shuffle")
    if r < 1 or x.shape[1] % (r * r):
        raise UnsupportedError(
            f"pixel_shuffle by {r} of {x.shape[1]} channels: {r}^2 must divide them"
        )
    extents = tuple(extent * r for extent in x.extents)
    windows = [
        Explicit(
            tuple(cell // r for cell in range(extent)),
            tuple(cell // r + 1 for cell in range(extent)),
        )
        for extent in extents
    ]

    def operation(block: Tensor, outputs: Box, inputs: Box) -> Tensor:
        shuffled = F.pixel_shuffle(block, r)
        for dim, ((begin, end), (first, _)) in enumerate(zip(outputs, inputs, strict=True), 2):
            shuffled = shuffled.narrow(dim, begin - first * r, end - begin)
        return shuffled

    return windowed(x, windows, extents, operation, empty=_channels(x.shape[1] // (r * r)))


@implements(F.pixel_unshuffle, torch.pixel_unshuffle)
def pixel_unshuffle(x: SpatialTensor, downscale_factor: int) -> SpatialTensor:
    """Cells become channels: (N, C, r H, r W) -> (N, C r^2, H, W)."""
    r = downscale_factor
    x = batched(x, 2, "pixel_unshuffle")
    if r < 1 or any(extent % r for extent in x.extents):
        raise UnsupportedError(
            f"pixel_unshuffle by {r} of extents {x.extents}: {r} must divide them"
        )
    extents = tuple(extent // r for extent in x.extents)

    def operation(block: Tensor, outputs: Box, inputs: Box) -> Tensor:
        return F.pixel_unshuffle(block, r)

    window = Sliding(r, r)
    return windowed(x, [window, window], extents, operation, empty=_channels(x.shape[1] * r * r))


def _channels(count: int) -> Any:
    def empty(local: Tensor) -> Tensor:
        return local.new_empty((local.shape[0], count, 0, 0))

    return empty
