"""Interpolation and pixel shuffle: each output names the cells that it is made of."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hvd_ext.spatial.adaptive import adaptive_pool
from hvd_ext.spatial.conv import batched
from hvd_ext.spatial.geometry import Listed, Sliding
from hvd_ext.spatial.partition import Box
from hvd_ext.spatial.refusal import Refusal
from hvd_ext.spatial.tensor import SpatialTensor, implements
from hvd_ext.spatial.windowed import windowed

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
        Refusal: a mode other than nearest, nearest-exact, linear, bilinear, trilinear and
            area, or antialias.
    """
    dims = len(input.extents)
    x = batched(input, dims, "interpolate")
    if antialias or mode not in ("nearest", "nearest-exact", "area", *LINEAR):
        raise Refusal(
            f"interpolate with mode={mode!r}, antialias={antialias}: nearest, nearest-exact, "
            "linear, bilinear, trilinear or area, without antialias"
        )
    if LINEAR.get(mode, dims) != dims:
        raise Refusal(f"interpolate with mode={mode!r} of {dims} split dims: it takes another many")
    if (size is None) == (scale_factor is None):
        raise Refusal("interpolate: give one of size and scale_factor")
    scales: list[float | None] = [None] * dims
    if size is not None:
        sizes = (size,) * dims if isinstance(size, int) else tuple(size)
    else:
        factors = (
            tuple(scale_factor) if isinstance(scale_factor, Sequence) else (scale_factor,) * dims
        )
        sizes = tuple(
            math.floor(float(extent) * float(factor or 0))
            for extent, factor in zip(x.extents, factors, strict=False)
        )
        if not recompute_scale_factor:
            scales = [None if factor is None else float(factor) for factor in factors]
    if len(sizes) != dims or min(*sizes, *x.extents) < 1:
        raise Refusal(f"interpolate of extents {x.extents} to {sizes}: at least 1 cell per dim")
    if mode == "area":
        return adaptive_pool(dims, x, sizes, largest=False)
    if mode in LINEAR:
        return _linear(x, sizes, scales, bool(align_corners))
    chosen = [
        _nearest(extent, count, scale, mode)
        for extent, count, scale in zip(x.extents, sizes, scales, strict=True)
    ]
    windows = [Listed(cells, tuple(cell + 1 for cell in cells)) for cells in chosen]

    def operation(block: Tensor, outputs: Box, inputs: Box) -> Tensor:
        for dim, (cells, (begin, end), (first, _)) in enumerate(
            zip(chosen, outputs, inputs, strict=True), start=2
        ):
            places = torch.tensor(cells[begin:end], device=block.device) - first
            block = block.index_select(dim, places)
        return block

    return windowed(x, windows, sizes, operation)


@functools.lru_cache(maxsize=256)
def _nearest(extent: int, count: int, scale: float | None, mode: str) -> tuple[int, ...]:
    """The cell that each output copies: torch's own choice, rounding included."""
    cells = torch.arange(extent, dtype=torch.float64).view(1, 1, extent)
    if scale is None:
        chosen = F.interpolate(cells, size=count, mode=mode)
    else:
        chosen = F.interpolate(cells, scale_factor=scale, mode=mode)
    return tuple(int(cell) for cell in chosen.flatten().tolist())


def _linear(
    x: SpatialTensor, sizes: Sequence[int], scales: Sequence[float | None], align_corners: bool
) -> SpatialTensor:
    weighed = [
        _neighbours(extent, count, scale, align_corners)
        for extent, count, scale in zip(x.extents, sizes, scales, strict=True)
    ]
    windows = [
        Listed(tuple(low for low, _, _ in along), tuple(high + 1 for _, high, _ in along))
        for along in weighed
    ]

    def operation(block: Tensor, outputs: Box, inputs: Box) -> Tensor:
        # Weights are computed, as torch does, in no less than single precision.
        wide = torch.promote_types(block.dtype, torch.float32)
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
    """Per output: the cells below and above it, and the weight of the one above."""
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
        raise Refusal(f"pixel_shuffle by {r} of {x.shape[1]} channels: {r}^2 must divide them")
    extents = tuple(extent * r for extent in x.extents)
    windows = [
        Listed(
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
        raise Refusal(f"pixel_unshuffle by {r} of extents {x.extents}: {r} must divide them")
    extents = tuple(extent // r for extent in x.extents)

    def operation(block: Tensor, outputs: Box, inputs: Box) -> Tensor:
        return F.pixel_unshuffle(block, r)

    window = Sliding(r, r)
    return windowed(x, [window, window], extents, operation, empty=_channels(x.shape[1] * r * r))


def _channels(count: int) -> Any:
    def empty(local: Tensor) -> Tensor:
        return local.new_empty((local.shape[0], count, 0, 0))

    return empty
