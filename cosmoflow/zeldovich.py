"""Universes of particles that gravity has moved, in Zel'dovich's approximation (1970).

One particle starts in each cell of a periodic box, of 1 Mpc/h a cell. It moves in a
straight line, by a displacement psi with -div psi = delta, where delta is the Gaussian
density that the universe's parameters prescribe, and further the more that density has
grown. The channels count the particles in cells at four redshifts, as the channels of the public
CosmoFlow data do, which N-body codes made.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from cosmoflow.cosmology import Cosmology
from cosmoflow.model import CHANNELS, PARAMETERS
from training.samples.fields import Array, Block, Procedure

REDSHIFTS = (0.0, 0.5, 1.5, 3.0)
# What -1 and 1 stand for: omega_m, sigma_8, n_s, h.
_RANGES = np.array([(0.2, 0.4), (0.6, 1.0), (0.86, 1.06), (0.55, 0.85)])
_KEPT_BYTES = 2**28


class ParticleUniverses:
    """Cubes (samples, 4, W, W, W) of counts, and labels (samples, 4), as they are sliced.

    A universe is cut into `per_side` cubed cubes, which follow one another and have its labels.
    """

    def __init__(self, samples: int, width: int, seed: int, per_side: int = 1) -> None:
        """Describe the cubes; nothing is computed yet.

        Args:
            samples: how many cubes.
            width: W.
            seed: names the row of universes.
            per_side: cubes along a side of a universe.
        """
        self.width, self.seed, self.per_side = width, seed, per_side
        self.side = width * per_side
        self.cubes = Procedure((samples, CHANNELS, *(width,) * 3), self._cube)
        self.labels = Procedure(
            (samples, PARAMETERS), lambda sample, _: self.parameters(self.universe(sample))
        )
        kept = _KEPT_BYTES // (2 * CHANNELS * self.side**3)
        self.counts = lru_cache(max(1, kept))(self._counts)

    def universe(self, sample: int) -> int:
        """The universe that a cube is of."""
        return sample // self.per_side**3

    def parameters(self, universe: int) -> Array:
        """The four parameters of a universe, each in -1..1."""
        return np.random.default_rng((self.seed, universe, 0)).uniform(-1, 1, PARAMETERS)

    def cosmology(self, universe: int) -> Cosmology:
        low, high = _RANGES.T
        return Cosmology(*(low + (high - low) * (1 + self.parameters(universe)) / 2))

    def _counts(self, universe: int) -> Array:
        """Particles in each cell at each redshift, (4, side, side, side) in int16."""
        cosmology = self.cosmology(universe)
        rng = np.random.default_rng((self.seed, universe, 1))
        _, moved = linear(cosmology, self.side, rng)
        return np.stack([count(moved * cosmology.growth(z)) for z in REDSHIFTS])

    def _cube(self, sample: int, block: Block) -> Array:
        place = sample % self.per_side**3
        corners = self.width * np.array(np.unravel_index(place, (self.per_side,) * 3))
        space = [
            slice(corner + begin, corner + end)
            for corner, (begin, end) in zip(corners, block, strict=True)
        ]
        z, y, x = space
        return np.asarray(self.counts(self.universe(sample))[:, z, y, x])


def linear(cosmology: Cosmology, side: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Density contrast today, if all had grown linearly, and the displacements that make it.

    Args:
        cosmology: the universe, whose spectrum the density has.
        side: side of the periodic box, in cells of 1 Mpc/h.
        rng: source of the random density.

    Returns:
        (side, side, side), and (3, side, side, side) in cells.
    """
    shape = (side,) * 3
    along = 2 * np.pi * np.fft.fftfreq(side)
    k = np.meshgrid(along, along, 2 * np.pi * np.fft.rfftfreq(side), indexing="ij", sparse=True)
    squared = k[0] ** 2 + k[1] ** 2 + k[2] ** 2
    squared[0, 0, 0] = 1
    density = np.fft.rfftn(rng.standard_normal(shape)) * np.sqrt(cosmology.power(np.sqrt(squared)))
    # No more matter than the mean.
    density[0, 0, 0] = 0
    # The highest wave number stands for both signs, whose slopes cancel.
    slopes = (1j * np.where(np.abs(component) < np.pi, component, 0) for component in k)
    moved = [np.fft.irfftn(slope / squared * density, shape, (0, 1, 2)) for slope in slopes]
    return np.fft.irfftn(density, shape, (0, 1, 2)), np.stack(moved)


def count(moved: Array) -> Array:
    """Particles in each cell of a periodic box, one of which started in each; int16.

    Args:
        moved: distance that each particle has moved, in cells, (3, side, side, side).
    """
    side = moved.shape[1]
    starts = np.meshgrid(*[np.arange(side)] * 3, indexing="ij", sparse=True)
    cells = [
        np.floor(start + 0.5 + by).astype(np.int64) % side
        for start, by in zip(starts, moved, strict=True)
    ]
    numbers = np.ravel_multi_index(cells, (side,) * 3)
    counts = np.bincount(numbers.ravel(), minlength=side**3)
    return counts.reshape((side,) * 3).astype(np.int16)
