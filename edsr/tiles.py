"""Upscale an image in tiles that equal the whole image."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from edsr.images import Pixels
from edsr.model import EDSR


def upscale_pixels(
    model: EDSR, low: Pixels, tile: int, advance: Callable[[int, str], None] | None = None
) -> Pixels:
    """(H, W, 3) -> (scale H, scale W, 3), clamped and rounded."""
    image = torch.from_numpy(np.ascontiguousarray(low.transpose(2, 0, 1))).float()
    high = upscale_tiles(model, image, tile, advance).clamp(0, 255).round().to(torch.uint8)
    return high.permute(1, 2, 0).numpy()


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
