"""Procedural universes, whose parameters are known.

A cube is a Gaussian random field with a power spectrum A k^-n exp(-(k / K)^2), seen at
four times, between which it grows. The four parameters, each scaled to -1..1, are the
amplitude, the tilt n, the cut-off K and the growth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cosmoflow.model import CHANNELS, PARAMETERS
from hvd_ext.spatial import Source
from training.samples.fields import Array, Block, Procedure, Waves, random_waves

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
        self.cubes = Procedure((samples, CHANNELS, *(width,) * 3), self._cube)
        self.labels = Procedure((samples, PARAMETERS), lambda sample, _: self.parameters(sample))

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

    def _cube(self, sample: int, block: Block) -> Array:
        times = growth(self.parameters(sample)[3])
        return np.multiply.outer(times, self.density(sample).at(block))


def spectrum(magnitudes: Array, amplitude: float, tilt: float, cutoff: float, width: int) -> Array:
    """Power of each wave; `magnitudes` are periods per box of `width` cells.

    The amplitude changes the field by a factor of up to 2, the tilt n lies in 0..1.5, and
    the cut-off in width / 16 to width / 4.
    """
    n, scale = 0.75 * (1 + tilt), width / 8 * np.exp(cutoff)
    power = magnitudes**-n * np.exp(-((magnitudes / scale) ** 2))
    return np.asarray(4.0**amplitude * power / 48)


def growth(parameter: float) -> Array:
    """The growth of the contrast until each of the four times."""
    return np.exp((1 + parameter) * np.arange(CHANNELS) / (CHANNELS - 1))


def same_rows(labels: Array) -> Array:
    """A number for each row of labels, (samples,): the same for all cubes of a universe."""
    return np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)


@dataclass(frozen=True)
class Log1p:
    """log(1 + x) of a source's values: MLPerf HPC's input, for counts, whose tail is heavy."""

    source: Source

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    def __getitem__(self, index: tuple[slice, ...]) -> Array:
        return np.log1p(np.asarray(self.source[index], np.float32))
