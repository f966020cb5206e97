"""Procedural tangled meshes, whose answer is known.

A square grid of cells is moved by a smooth random displacement (v, u). Where the map
from the old place to the new one nearly folds, its Jacobian determinant
(1 + du/dx)(1 + dv/dy) - du/dy dv/dx is small: those cells must be relaxed. The network
is given displacements, edge lengths and angles, and state variables that have nothing
to do with it; it is not given the determinant.
"""

from __future__ import annotations

import numpy as np

from mesh.model import CHANNELS
from training.samples.fields import Array, Block, Procedure, Waves, random_waves

# Below this share of its old area a cell counts as tangled.
THRESHOLD = 0.5
_WAVES = 12
# Periods per box; displacements grow with the wavelength, slopes do not.
_MAGNITUDES = (1.0, 4.0)


class Meshes:
    """Inputs (samples, 18, H, W) and masks (samples, 1, H, W), computed as they are sliced."""

    # Standard deviation of the displacement's four slopes.
    slope = 0.5

    def __init__(self, samples: int, size: int, seed: int) -> None:
        """Describe the meshes; nothing is computed yet.

        Args:
            samples: how many.
            size: H and W.
            seed: names the row of samples.
        """
        self.samples, self.size, self.seed = samples, size, seed
        self.inputs = Procedure((samples, CHANNELS, size, size), self._inputs)
        self.masks = Procedure((samples, 1, size, size), self._mask)

    def displacement(self, sample: int) -> tuple[Waves, Waves]:
        """The displacements (along y, along x) of a sample, in cells."""
        rng = np.random.default_rng((self.seed, sample, 0))
        along_y, along_x = (self._waves(rng, self.slope) for _ in range(2))
        return along_y, along_x

    def state(self, sample: int, channel: int) -> Waves:
        """A state variable of a sample, which is of no use to the task."""
        rng = np.random.default_rng((self.seed, sample, 1 + channel))
        return self._waves(rng, 2 * np.pi / self.size)

    def states(self, sample: int, channels: int, block: Block) -> list[Array]:
        """State variables of a sample at a block, (H, W) each."""
        return [self.state(sample, channel).at(block) for channel in range(channels)]

    def _inputs(self, sample: int, block: Block) -> Array:
        v, u = self.displacement(sample)
        u_y, u_x = (u.slope(dim).at(block) for dim in (0, 1))
        v_y, v_x = (v.slope(dim).at(block) for dim in (0, 1))
        height = np.hypot(u_y, 1 + v_y)
        width = np.hypot(1 + u_x, v_x)
        cosine = (u_y * (1 + u_x) + (1 + v_y) * v_x) / (height * width)
        # In units of the wavelengths that occur, so that all channels are of order 1.
        unit = self.size / 20
        geometry = [v.at(block) / unit, u.at(block) / unit, height - 1, width - 1, cosine]
        return np.stack([*geometry, *self.states(sample, CHANNELS - len(geometry), block)])

    def _mask(self, sample: int, block: Block) -> Array:
        v, u = self.displacement(sample)
        u_y, u_x = (u.slope(dim).at(block) for dim in (0, 1))
        v_y, v_x = (v.slope(dim).at(block) for dim in (0, 1))
        return ((1 + u_x) * (1 + v_y) - u_y * v_x < THRESHOLD)[None]

    def _waves(self, rng: np.random.Generator, slope: float) -> Waves:
        magnitudes = np.linspace(*_MAGNITUDES, _WAVES)
        amplitudes = slope * self.size / (2 * np.pi * magnitudes) * np.sqrt(4 / _WAVES)
        return random_waves(rng, (self.size, self.size), magnitudes, amplitudes)
