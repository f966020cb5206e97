"""Universes of particles obey the physics that they are made by."""

from __future__ import annotations

import numpy as np
import pytest

from cosmoflow.cosmology import Cosmology
from cosmoflow.zeldovich import REDSHIFTS, ParticleUniverses, count, linear

SIDE = 64
USUAL = Cosmology(0.31, 0.81, 0.97, 0.68)
EVERYTHING = (slice(None),) * 5


@pytest.fixture(scope="module")
def box() -> tuple[np.ndarray, np.ndarray]:
    return linear(USUAL, SIDE, np.random.default_rng(4))


def wave_numbers() -> np.ndarray:
    along = 2 * np.pi * np.fft.fftfreq(SIDE)
    return np.sqrt(sum(np.square(k) for k in np.meshgrid(*[along] * 3, indexing="ij")))


def test_the_spectrum_has_the_variance_and_the_slopes_that_it_is_known_by() -> None:
    k = np.geomspace(1e-5, 1e2, 20_001)
    x = 8 * k
    window = 3 * (np.sin(x) - x * np.cos(x)) / x**3
    variance = np.trapezoid(k**3 * USUAL.power(k) * window**2, np.log(k)) / (2 * np.pi**2)
    assert np.sqrt(variance) == pytest.approx(0.81, rel=1e-3)
    slopes = np.gradient(np.log(USUAL.power(k)), np.log(k))
    assert slopes[1] == pytest.approx(0.97, abs=0.01)
    # Matter and radiation were equally dense when waves of 0.01 h/Mpc came within the horizon.
    assert 0.01 < k[np.argmax(USUAL.power(k))] < 0.025
    assert -2.9 < slopes[np.searchsorted(k, 10)] < -2.2


def test_growth() -> None:
    flat = Cosmology(1.0, 0.8, 1.0, 0.7)
    assert [flat.growth(z) for z in REDSHIFTS] == pytest.approx([1 / (1 + z) for z in REDSHIFTS])
    # Lahav and Suto, 2004: the growing mode is an integral over the expansion.
    scale = np.linspace(1e-4, 1, 100_001)
    expansion = np.sqrt(0.31 / scale**3 + 0.69)
    integrals = np.cumsum(1 / (scale * expansion) ** 3) * expansion
    at = np.searchsorted(scale, 1 / (1 + 1.5))
    assert USUAL.growth(1.5) == pytest.approx(integrals[at] / integrals[-1], rel=0.01)


def test_displacements_make_the_density(box: tuple[np.ndarray, np.ndarray]) -> None:
    density, moved = box
    along = 2 * np.pi * np.fft.fftfreq(SIDE)
    along[SIDE // 2] = 0
    k = np.meshgrid(along, along, along, indexing="ij")
    divergence = sum(1j * k[dim] * np.fft.fftn(moved[dim]) for dim in range(3))
    below = wave_numbers() < 0.9 * np.pi
    np.testing.assert_allclose(-divergence[below], np.fft.fftn(density)[below], atol=1e-6)


def test_the_density_has_the_spectrum(box: tuple[np.ndarray, np.ndarray]) -> None:
    k = wave_numbers()
    power = np.abs(np.fft.fftn(box[0])) ** 2 / SIDE**3
    for low, high in ((0.3, 0.6), (0.6, 1.2), (1.2, 2.4)):
        shell = (k >= low) & (k < high)
        # Half of the modes are free, and each scatters by as much as its power.
        scatter = 4 * np.sqrt(2 / shell.sum())
        assert np.mean(power[shell] / USUAL.power(k[shell])) == pytest.approx(1, abs=scatter)


def test_no_particle_is_lost_and_large_scales_follow_the_linear_density(
    box: tuple[np.ndarray, np.ndarray],
) -> None:
    density, moved = box
    assert np.array_equal(count(np.zeros_like(moved)), np.ones((SIDE,) * 3))
    large = (wave_numbers() < 0.25) & (wave_numbers() > 0)
    expected = np.fft.fftn(density)[large]
    # At redshift 3 the lattice from which particles start is seen yet.
    for redshift in REDSHIFTS[:3]:
        growth = USUAL.growth(redshift)
        counts = count(moved * growth)
        assert counts.sum() == SIDE**3
        found = np.fft.fftn(counts)[large]
        overlap = np.vdot(expected, found).real
        lengths = np.linalg.norm(expected) * np.linalg.norm(found)
        assert overlap / lengths > 0.9
        assert overlap / np.linalg.norm(expected) ** 2 == pytest.approx(growth, rel=0.2)


def test_cubes_are_pieces_of_universes_that_the_seed_names() -> None:
    universes = ParticleUniverses(16, width=16, seed=3, per_side=2)
    cubes, labels = universes.cubes[EVERYTHING], universes.labels[:, :]
    assert cubes.shape == (16, 4, 16, 16, 16)
    assert len(np.unique(labels[:8], axis=0)) == len(np.unique(labels[8:], axis=0)) == 1
    assert not np.array_equal(labels[0], labels[8])
    # Put together they have every particle, at each redshift; and structure grows.
    assert cubes[:8].sum(axis=(0, 2, 3, 4)).tolist() == [32**3] * 4
    spread = cubes[:8].std(axis=(0, 2, 3, 4))
    assert list(spread) == sorted(spread, reverse=True)
    block = universes.cubes[9:11, :, 3:9, :, 15:16]
    assert np.array_equal(block, cubes[9:11, :, 3:9, :, 15:16])
    again = ParticleUniverses(16, width=16, seed=3, per_side=2).cubes[5:6, :, :, :, :]
    assert np.array_equal(again, cubes[5:6])
    other = ParticleUniverses(16, width=16, seed=4, per_side=2).cubes[5:6, :, :, :, :]
    assert not np.array_equal(other, again)
