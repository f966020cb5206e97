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
    margin: int | None = None,
    keep: bool = True,
) -> Pixels:
    """(H, W, 3) -> (scale H, scale W, 3), clamped and rounded.

    Args:
        model: the network; its device is used.
        low: the image.
        tile: length of a tile in input pixels.
        advance: called with the number of tiles done.
        ensemble: take the mean over the eight orientations (EDSR+).
        margin: see `upscale_tiles`.
        keep: False on ranks that take part, and do not want the result: it is empty then.
    """
    scale = model.architecture.scale
    result = np.empty((*(length * scale * keep for length in low.shape[:2]), 3), np.uint8)
    tiles = upscale_tiles(model, low, tile, ensemble=ensemble, margin=margin)
    for done, (place, high) in enumerate(tiles, start=1):
        if keep:
            result[place] = high.clamp(0, 255).round().byte().permute(1, 2, 0).cpu().numpy()
        if advance:
            advance(done, "")
    return result


@torch.inference_mode()
def upscale_tiles(
    model: EDSR, low: Pixels, tile: int, *, ensemble: bool = False, margin: int | None = None
) -> Iterator[tuple[tuple[slice, slice], Tensor]]:
    """(H, W, 3) -> tiles (3, scale h, scale w) of range 0..255, and where they belong.

    Each tile is computed with all the surroundings that the network can see from it,
    and these are cut off again; only the order of additions may differ from the whole.

    Args:
        model: the network; its device is used.
        low: the image.
        tile: length of a tile in input pixels.
        ensemble: take the mean over the eight orientations.
        margin: width of the surroundings, in input pixels; None: the network's reach. With less,
            tiles differ from the whole.
    """
    scale = model.architecture.scale
    margin = model.reach if margin is None else margin
    device = next(model.parameters()).device
    ways = list(orientations()) if ensemble else [(_as_it_is, _as_it_is)]
    height, width, _ = low.shape
    for top, left in tile_corners(height, width, tile):
        bottom, right = min(top + tile, height), min(left + tile, width)
        y, x = max(top - margin, 0), max(left - margin, 0)
        pixels = low[y : bottom + margin, x : right + margin].copy()
        region = torch.from_numpy(pixels).to(device).permute(2, 0, 1).float()
        high = torch.zeros(())
        for there, back in ways:
            high = high + back(model(there(region).unsqueeze(0))[0])
        inner = high[
            :,
            (top - y) * scale : (bottom - y) * scale,
            (left - x) * scale : (right - x) * scale,
        ]
        place = (slice(top * scale, bottom * scale), slice(left * scale, right * scale))
        yield place, inner / len(ways)


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


def _as_it_is(x: Tensor) -> Tensor:
    return x


def tile_corners(height: int, width: int, tile: int) -> list[tuple[int, int]]:
    """Top left corners (y, x) of the tiles of an image."""
    return [(y, x) for y in range(0, height, tile) for x in range(0, width, tile)]
