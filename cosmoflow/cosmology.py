"""A flat universe with a cosmological constant: its power spectrum, and its growth.

Wave numbers are in h/Mpc, lengths in Mpc/h.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from training.samples.fields import Array

# Density of baryons, and temperature of the background in units of 2.7 K (Planck, 2018; COBE).
_OMEGA_B = 0.049
_THETA = 2.7255 / 2.7


@dataclass(frozen=True)
class Cosmology:
    """A universe's parameters.

    Attributes:
        omega_m: density of matter, as a share of the critical one.
        sigma_8: standard deviation of the density in spheres of 8 Mpc/h, today.
        n_s: tilt of the primordial spectrum.
        h: Hubble's constant, in 100 km/s/Mpc.
    """

    omega_m: float
    sigma_8: float
    n_s: float
    h: float

    def transfer(self, k: Array) -> Array:
        """Eisenstein and Hu, 1998, without wiggles: equations 26 and 28 to 31."""
        matter, baryons = self.omega_m * self.h**2, _OMEGA_B * self.h**2
        share = _OMEGA_B / self.omega_m
        horizon = 44.5 * np.log(9.83 / matter) / np.sqrt(1 + 10 * baryons**0.75)
        alpha = 1 - 0.328 * np.log(431 * matter) * share + 0.38 * np.log(22.3 * matter) * share**2
        damped = 1 + (0.43 * k * self.h * horizon) ** 4
        shape = self.omega_m * self.h * (alpha + (1 - alpha) / damped)
        q = k * _THETA**2 / shape
        logarithm = np.log(2 * np.e + 1.8 * q)
        return np.asarray(logarithm / (logarithm + (14.2 + 731 / (1 + 62.5 * q)) * q**2))

    def power(self, k: Array) -> Array:
        """Power spectrum of the linear density today, in (Mpc/h)^3; k > 0."""
        return self._amplitude * k**self.n_s * self.transfer(k) ** 2

    def growth(self, redshift: float) -> float:
        """Linear density at a redshift over today's (Carroll, Press and Turner, 1992)."""
        return self._growth(1 / (1 + redshift)) / self._growth(1.0)

    @cached_property
    def _amplitude(self) -> float:
        k = np.geomspace(1e-5, 1e2, 4000)
        x = 8 * k
        window = 3 * (np.sin(x) - x * np.cos(x)) / x**3
        # Of dk = k d(log k), by the trapezoidal rule.
        integrand = k**3 * k**self.n_s * (self.transfer(k) * window) ** 2 / (2 * np.pi**2)
        step = np.log(k[1] / k[0])
        variance = step * (integrand.sum() - (integrand[0] + integrand[-1]) / 2)
        return float(self.sigma_8**2 / variance)

    def _growth(self, scale: float) -> float:
        expansion = self.omega_m / scale**3 + 1 - self.omega_m
        matter, dark = self.omega_m / scale**3 / expansion, (1 - self.omega_m) / expansion
        held_back = matter ** (4 / 7) - dark + (1 + matter / 2) * (1 + dark / 70)
        return scale * 2.5 * matter / held_back
