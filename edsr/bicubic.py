"""Bicubic resizing as MATLAB's imresize does it, which made the literature's small images.

Keys' kernel (a = -0.5; IEEE Trans. ASSP 29, 1981), widened by the factor where an image
shrinks; borders are mirrored; each axis is rounded to 8 bits before the next.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

_SUPPORT = 4


def resize(pixels: Pixels, height: int, width: int) -> Pixels:
    """(H, W, C) -> (height, width, C), of 8 bits; the dim that shrinks most comes first."""
    lengths = (height, width)
    for axis in sorted((0, 1), key=lambda axis: lengths[axis] / pixels.shape[axis]):
        pixels = _resize_axis(pixels, axis, lengths[axis])
    return pixels


def _resize_axis(pixels: Pixels, axis: int, length: int) -> Pixels:
    places, weights = taps(pixels.shape[axis], length)
    shape = [1] * pixels.ndim
    shape[axis] = length
    total = np.zeros((*pixels.shape[:axis], length, *pixels.shape[axis + 1 :]))
    for place, weight in zip(places.T, weights.T, strict=True):
        total += weight.reshape(shape) * pixels.take(place, axis)
    return np.floor(total.clip(0, 255) + 0.5).astype(np.uint8)


def taps(count: int, length: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Which of `count` pixels each of `length` pixels is made of.

    Returns:
        (length, taps): their places, and their weights, which add up to 1.
    """
    scale = length / count
    narrowing = min(scale, 1.0)
    width = _SUPPORT / narrowing
    # The center of each pixel of the result, relative to the center of the first pixel.
    middles = (np.arange(length) + 0.5) / scale - 0.5
    first = np.floor(middles - width / 2).astype(np.int64) + 1
    places = first[:, None] + np.arange(math.ceil(width) + 1)
    weights = _cubic(narrowing * (middles[:, None] - places))
    weights /= weights.sum(axis=1, keepdims=True)
    used = weights.any(axis=0)
    mirrored = places % (2 * count)
    mirrored = np.minimum(mirrored, 2 * count - 1 - mirrored)
    return mirrored[:, used], weights[:, used]


def _cubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    x = np.abs(x)
    near = (1.5 * x - 2.5) * x**2 + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x <= 1, near, np.where(x <= 2, far, 0.0))
