"""Pairs of patches, the same for any number of ranks.

Sample `index` of a run is a function of the seed and `index` alone: the ranks only
share out who computes which. So a run goes on anywhere by its index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edsr.bicubic import Pixels
from edsr.images import MATLAB, load_rgb, shrink
from hvd_ext.errors import UsageError

SYNTHETIC_IMAGES = 16


class Patches:
    """An endless row of random pairs of patches from images kept in memory.

    An epoch shows each image once, in random order; sample i of epoch e is cut,
    flipped and transposed at random.
    """

    def __init__(
        self, images: Sequence[Pixels], scale: int, patch: int, seed: int, kernel: str = MATLAB
    ) -> None:
        """Make the low-resolution image of each image, and keep both.

        Args:
            images: (H, W, 3) each, both lengths at least `scale` times `patch`.
            scale: factor between the resolutions.
            patch: length of the low-resolution patch.
            seed: names the row of samples.
            kernel: whose bicubic makes the low-resolution images.
        """
        self._pairs = [shrink(image, scale, kernel) for image in images]
        self._scale, self._patch, self._seed = scale, patch, seed
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def sample(self, index: int) -> tuple[Pixels, Pixels]:
        """Sample number `index`: (patch, patch, 3) and its (scale patch, scale patch, 3)."""
        epoch, i = divmod(index, len(self._pairs))
        low, high = self._pairs[self._order(epoch)[i]]
        # NumPy pads a seed with zeros, so i + 1 keeps apart from the order's seed.
        rng = np.random.default_rng((self._seed, epoch, i + 1))
        patch, scale = self._patch, self._scale
        y = int(rng.integers(low.shape[0] - patch + 1))
        x = int(rng.integers(low.shape[1] - patch + 1))
        pair = (
            low[y : y + patch, x : x + patch],
            high[y * scale : (y + patch) * scale, x * scale : (x + patch) * scale],
        )
        flip_rows, flip_columns, transpose = rng.random(3) < 0.5
        if flip_rows:
            pair = (pair[0][::-1], pair[1][::-1])
        if flip_columns:
            pair = (pair[0][:, ::-1], pair[1][:, ::-1])
        if transpose:
            pair = (pair[0].swapaxes(0, 1), pair[1].swapaxes(0, 1))
        return pair

    def batch(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Samples `first` to `first + count` as float (N, 3, H, W) of range 0..255."""
        lows, highs = zip(*(self.sample(first + k) for k in range(count)), strict=True)
        return _to_tensor(np.stack(lows)), _to_tensor(np.stack(highs))

    def _shuffled(self, epoch: int) -> list[int]:
        order = np.random.default_rng((self._seed, epoch, 0)).permutation(len(self._pairs))
        return [int(image) for image in order]


def load_images(
    paths: Sequence[Path], least: int, loaded: Callable[[int, str], None]
) -> list[Pixels]:
    """Decode images, and see that a patch fits into each.

    Args:
        paths: the files.
        least: length of the high-resolution patch.
        loaded: told how many are loaded so far.

    Raises:
        UsageError: a file is not a readable image, or is smaller than the patch.
    """
    images = []
    for path in paths:
        image = load_rgb(path)
        height, width = image.shape[:2]
        if min(height, width) < least:
            raise UsageError(
                f"{path} is {width}x{height}, smaller than the patch of {least}x{least}: "
                "leave it out or lower --patch"
            )
        images.append(image)
        loaded(len(images), "")
    return images


def synthetic_image(seed: int, index: int, length: int) -> Pixels:
    """A procedural image (length, length, 3): discs and bands with sharp edges on a gradient.

    Sharp edges are what bicubic blurs and a network can learn to restore.
    """
    rng = np.random.default_rng((seed, index))
    y, x = np.mgrid[0:length, 0:length].astype(np.float32)
    colours = rng.uniform(0, 255, (2, 1, 1, 3)).astype(np.float32)
    slope = ((x + y) / (2 * length))[..., None]
    image = colours[0] * slope + colours[1] * (1 - slope)
    for _ in range(24):
        angle, wavelength = rng.uniform(0, np.pi), rng.uniform(4, 24)
        centre_y, centre_x = rng.uniform(0, length, 2)
        radius = rng.uniform(length / 16, length / 4)
        # Both distances are in pixels, so an edge is one pixel soft.
        disc = radius - np.hypot(y - centre_y, x - centre_x)
        phase = (np.cos(angle) * x + np.sin(angle) * y) % wavelength
        band = wavelength / 4 - np.abs(phase - wavelength / 2)
        distance = np.minimum(disc, band) if rng.random() < 0.5 else disc
        cover = np.clip(distance + 0.5, 0, 1)[..., None]
        image = image * (1 - cover) + rng.uniform(0, 255, 3).astype(np.float32) * cover
    return np.rint(image).astype(np.uint8)


def _to_tensor(pixels: Pixels) -> Tensor:
    channels_first = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
    return torch.from_numpy(channels_first).float()
