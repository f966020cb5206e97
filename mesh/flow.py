"""Meshes that a flow carries: tangled where it has squeezed their cells.

The network is given the velocity at each pixel, and predicts at which pixels the cells that arrive
there will be tangled. Such a cell started elsewhere: its area changes by the divergence of the flow
along its path (Euler's expansion formula), so the answer at a pixel depends on velocities as far
away as the path is long. No local formula gives it, and neither can a rank that does not see its
neighbors' pixels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mesh.data import THRESHOLD, Meshes
from mesh.model import CHANNELS
from training.samples.fields import Array, Block

# Velocities (y, x) and divergence at places (2, points), in cells per unit of time.
Flow = Callable[[Array], tuple[Array, Array]]

_STEPS = 8


class FlowMeshes(Meshes):
    """Inputs (samples, 18, H, W) and masks (samples, 1, H, W), computed as they are sliced.

    The first two channels are the velocity (v, u); the others are of no use to the task.
    """

    # A tenth of the pixels is tangled, and the divergence at a pixel does not show which.
    slope = 1.0

    def flow(self, sample: int) -> Flow:
        """The flow that carries a sample's mesh for one unit of time."""
        v, u = self.displacement(sample)
        v_y, u_x = v.slope(0), u.slope(1)

        def at(places: Array) -> tuple[Array, Array]:
            velocity = np.stack([v.at_points(places), u.at_points(places)])
            return velocity, v_y.at_points(places) + u_x.at_points(places)

        return at

    def _inputs(self, sample: int, block: Block) -> Array:
        velocity = [wave.at(block) / (self.size / 20) for wave in self.displacement(sample)]
        return np.stack([*velocity, *self.states(sample, CHANNELS - len(velocity), block)])

    def _mask(self, sample: int, block: Block) -> Array:
        y, x = (np.arange(begin, end, dtype=np.float64) for begin, end in block)
        places = np.stack(np.meshgrid(y, x, indexing="ij")).reshape(2, -1)
        _, area = carried(self.flow(sample), places)
        return (area < THRESHOLD).reshape(1, len(y), len(x))


def carried(flow: Flow, places: Array, steps: int = _STEPS) -> tuple[Array, Array]:
    """Follow cells back to where they were one unit of time ago, by the midpoint rule.

    Args:
        flow: does not change with time.
        places: where they are now, (2, points), in cells.
        steps: number of steps of the integration.

    Returns:
        where they were, (2, points), and the ratio of their area now to the area before, (points,).
    """
    time = 1 / steps
    expansion = np.zeros(places.shape[1])
    for _ in range(steps):
        velocity, _ = flow(places)
        velocity, divergence = flow(places - time / 2 * velocity)
        places = places - time * velocity
        expansion += time * divergence
    return places, np.exp(expansion)
