"""Pairs of patches, the same for any number of ranks."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from edsr.bicubic import Pixels
from edsr.pairs import Pair, Pairs
from hvd_ext.cli import progress
from hvd_ext.data.store.node import Arrays, share_arrays
from hvd_ext.errors import UsageError
from training import ranks
from training.samples.checking import everyones, refuse_unusable

SYNTHETIC_IMAGES = 16


class Patches:
    """Images in two resolutions, and pairs of patches of them, cut, flipped and transposed."""

    def __init__(self, pairs: Sequence[Pair], scale: int, patch: int) -> None:
        """Keep the images.

        Args:
            pairs: pairs of `shrink`; the larger images have lengths of at least `scale` times
                `patch`.
            scale: factor between the resolutions.
            patch: length of the low-resolution patch.
        """
        self._pairs, self._scale, self._patch = pairs, scale, patch

    def __getitem__(self, image: int) -> Pair:
        """An image in both resolutions: (H, W, 3) and (scale H, scale W, 3)."""
        return self._pairs[image]

    def cut(self, pair: Pair, rng: np.random.Generator) -> Pair:
        """A patch of an image: (patch, patch, 3) and its (scale patch, scale patch, 3)."""
        low, high = pair
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


def stack(pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    """Pairs of patches as float (N, 3, H, W) of range 0..255."""
    lows, highs = zip(*pairs, strict=True)
    return _to_tensor(np.stack(lows)), _to_tensor(np.stack(highs))


def load_pairs(pairs: Pairs, hvd: ModuleType, program: str) -> tuple[list[Pair], list[int]]:
    """All pairs, each decoded by one rank of a node, and a checksum of each. A collective.

    Args:
        pairs: the same on all ranks.
        hvd: the exchange.
        program: the name that errors begin with.

    Raises:
        SystemExit: some cannot be used; rank 0 has named them.
    """
    unusable: dict[int, str] = {}
    # Agreed on, because the memory of one node may not suffice.
    with (
        ranks.collective_errors(hvd, program),
        progress("loading", len(pairs), shown=hvd.rank() == 0) as loaded,
    ):

        def made(number: int) -> Arrays:
            loaded(number)
            try:
                low, high = pairs[number]
            except UsageError as error:  # all of them are named
                unusable[number] = str(error)
                return (np.zeros(0), np.zeros(0), np.zeros(0))
            content = zlib.crc32(low.tobytes(), zlib.crc32(high.tobytes()))
            return low, high, np.array(content)

        kept = share_arrays(len(pairs), made)
    refuse_unusable(hvd, program, everyones(hvd, unusable), len(pairs))
    return [(low, high) for low, high, _ in kept], [int(content) for _, _, content in kept]


def synthetic_image(seed: int, index: int, length: int) -> Pixels:
    """A procedural image (length, length, 3): discs and bands with sharp edges on a gradient.

    Sharp edges are what bicubic blurs and a network can learn to restore.
    """
    rng = np.random.default_rng((seed, index))
    y, x = np.mgrid[0:length, 0:length].astype(np.float32)
    colors = rng.uniform(0, 255, (2, 1, 1, 3)).astype(np.float32)
    slope = ((x + y) / (2 * length))[..., None]
    image = colors[0] * slope + colors[1] * (1 - slope)
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
