"""Procedural universes, whose parameters are known.

A cube is a Gaussian random field with a power spectrum A k^-n exp(-(k / K)^2), seen at
four times, between which it grows. The four parameters, each scaled to -1..1, are the
amplitude, the tilt n, the cut-off K and the growth.
"""

from __future__ import annotations

import numpy as np

from cosmoflow.model import CHANNELS, PARAMETERS
from training.fields import Array, Waves, block_of, random_waves

_WAVES = 96


class Universes:
    """Cubes (samples, 4, W, W, W) and labels (samples, 4), computed as they are sliced."""

    def __init__(self, samples: int, width: int, seed: int) -> None:
        """Describe the cubes; nothing is computed yet.

        Args:
            samples: how many.
            width: W.
            seed: names the row of samples.
        """
        self.samples, self.width, self.seed = samples, width, seed
        self.cubes = _Cubes(self)
        self.labels = _Labels(self)

    def parameters(self, sample: int) -> Array:
        """The four parameters of a sample, each in -1..1."""
        return np.random.default_rng((self.seed, sample, 0)).uniform(-1, 1, PARAMETERS)

    def density(self, sample: int) -> Waves:
        """The density contrast of a sample at the first of the four times."""
        amplitude, tilt, cutoff, _ = self.parameters(sample)
        rng = np.random.default_rng((self.seed, sample, 1))
        magnitudes = np.geomspace(1, self.width / 4, _WAVES)
        power = spectrum(magnitudes, amplitude, tilt, cutoff * np.log(2), self.width)
        return random_waves(rng, (self.width,) * 3, magnitudes, np.sqrt(power))


def spectrum(magnitudes: Array, amplitude: float, tilt: float, cutoff: float, width: int) -> Array:
    """Power of each wave; `magnitudes` are periods per box of `width` cells.

    The amplitude changes the field by a factor of up to 2, the tilt n lies in 0..1.5, and
    the cut-off in width / 16 to width / 4.
    """
    n, scale = 0.75 * (1 + tilt), width / 8 * np.exp(cutoff)
    power = magnitudes**-n * np.exp(-((magnitudes / scale) ** 2))
    return np.asarray(4.0**amplitude * power / 48)


def growth(parameter: float) -> Array:
    """By how much the contrast has grown at each of the four times."""
    return np.exp((1 + parameter) * np.arange(CHANNELS) / (CHANNELS - 1))


class _Cubes:
    def __init__(self, universes: Universes) -> None:
        self._universes = universes
        self.shape = (universes.samples, CHANNELS, *(universes.width,) * 3)
        self.dtype = np.dtype(np.float32)

    def __getitem__(self, index: tuple[slice, ...]) -> Array:
        (first, last), (low, high), *block = block_of(index, self.shape)
        lengths = [end - begin for begin, end in block]
        cubes = np.empty((last - first, high - low, *lengths), self.dtype)
        for sample in range(first, last):
            times = growth(self._universes.parameters(sample)[3])[low:high]
            density = self._universes.density(sample).at(block)
            np.multiply.outer(times, density, out=cubes[sample - first], casting="same_kind")
        return cubes


class _Labels:
    def __init__(self, universes: Universes) -> None:
        self._universes = universes
        self.shape = (universes.samples, PARAMETERS)
        self.dtype = np.dtype(np.float32)

    def __getitem__(self, index: tuple[slice, ...]) -> Array:
        (first, last), (low, high) = block_of(index, self.shape)
        labels = np.empty((last - first, high - low), self.dtype)
        for sample in range(first, last):
            labels[sample - first] = self._universes.parameters(sample)[low:high]
        return labels
