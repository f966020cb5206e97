"""Upscale an image in tiles that equal the whole image."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from edsr.bicubic import Pixels
from edsr.model import EDSR

Orient = Callable[[Tensor], Tensor]


def upscale_pixels(
    model: EDSR,
    low: Pixels,
    tile: int,
    advance: Callable[[int, str], None] | None = None,
    *,
    ensemble: bool = False,
) -> Pixels:
    """(H, W, 3) -> (scale H, scale W, 3), clamped and rounded.

    Args:
        model: the network; its device is used.
        low: the image.
        tile: length of a tile in input pixels.
        advance: told how many tiles are done.
        ensemble: take the mean over the eight orientations (EDSR+).
    """
    image = torch.from_numpy(np.ascontiguousarray(low.transpose(2, 0, 1))).float()
    if ensemble:
        high = _mean_of_orientations(model, image, tile, advance)
    else:
        high = upscale_tiles(model, image, tile, advance)
    return high.clamp(0, 255).round().to(torch.uint8).permute(1, 2, 0).numpy()


def orientations() -> Iterator[tuple[Orient, Orient]]:
    """Each of the eight ways to turn and mirror an image, and its inverse."""
    for axes in ([], [1], [2], [1, 2]):
        for transposed in (False, True):

            def there(x: Tensor, axes: list[int] = axes, swap: bool = transposed) -> Tensor:
                x = x.flip(axes)
                return x.transpose(1, 2).contiguous() if swap else x

            def back(x: Tensor, axes: list[int] = axes, swap: bool = transposed) -> Tensor:
                return (x.transpose(1, 2) if swap else x).flip(axes)

            yield there, back


def _mean_of_orientations(
    model: EDSR, image: Tensor, tile: int, advance: Callable[[int, str], None] | None
) -> Tensor:
    tiles, total = len(tile_corners(image.shape[1], image.shape[2], tile)), None
    for number, (there, back) in enumerate(orientations()):
        high = back(upscale_tiles(model, there(image), tile))
        total = high if total is None else total + high
        if advance:
            advance((number + 1) * tiles // 8, "")
    assert total is not None
    return total / 8


@torch.inference_mode()
def upscale_tiles(
    model: EDSR, low: Tensor, tile: int, advance: Callable[[int, str], None] | None = None
) -> Tensor:
    """(3, H, W) -> (3, scale H, scale W), a tile of `tile` input pixels at a time.

    Each tile is computed with all the surroundings that the network can see from it,
    and these are cut off again; only the order of additions may differ from the whole.

    Args:
        model: the network; its device is used for the tiles, the result is on the CPU.
        low: the image, of range 0..255.
        tile: length of a tile in input pixels.
        advance: told how many tiles are done.
    """
    scale, reach = model.architecture.scale, model.reach
    device = next(model.parameters()).device
    _, height, width = low.shape
    high = torch.empty(3, height * scale, width * scale)
    for done, (top, left) in enumerate(tile_corners(height, width, tile), start=1):
        bottom, right = min(top + tile, height), min(left + tile, width)
        y, x = max(top - reach, 0), max(left - reach, 0)
        region = low[:, y : bottom + reach, x : right + reach]
        result = model(region.unsqueeze(0).to(device))[0]
        high[:, top * scale : bottom * scale, left * scale : right * scale] = result[
            :,
            (top - y) * scale : (bottom - y) * scale,
            (left - x) * scale : (right - x) * scale,
        ]
        if advance:
            advance(done, "")
    return high


def tile_corners(height: int, width: int, tile: int) -> list[tuple[int, int]]:
    """Top left corners (y, x) of the tiles of an image."""
    return [(y, x) for y in range(0, height, tile) for x in range(0, width, tile)]
