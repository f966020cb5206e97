"""Meshes that a flow carries: the answer is right, and no local formula has it."""

from __future__ import annotations

import numpy as np
import pytest

from mesh.data import THRESHOLD
from mesh.flow import Flow, FlowMeshes, carried

SIZE = 128


@pytest.fixture(scope="module")
def flow() -> Flow:
    return FlowMeshes(samples=3, size=SIZE, seed=5).flow(1)


@pytest.fixture(scope="module")
def places() -> np.ndarray:
    return np.stack(np.mgrid[0.0:SIZE, 0.0:SIZE]).reshape(2, -1)


def test_a_cell_has_the_area_to_which_the_flow_moves_its_corners(
    flow: Flow, places: np.ndarray
) -> None:
    chosen = places[:, ::97]
    _, area = carried(flow, chosen, steps=64)
    side = 1e-3
    ends = [
        carried(flow, chosen + side * np.array(offset)[:, None], steps=64)[0]
        for offset in ((1, 0), (-1, 0), (0, 1), (0, -1))
    ]
    along_y, along_x = ((ends[i] - ends[i + 1]) / (2 * side) for i in (0, 2))
    came_from = along_y[0] * along_x[1] - along_y[1] * along_x[0]
    np.testing.assert_allclose(area * came_from, 1, rtol=1e-2)


def test_the_mask_has_converged_and_is_no_local_formula(flow: Flow, places: np.ndarray) -> None:
    meshes = FlowMeshes(samples=3, size=SIZE, seed=5)
    mask = meshes.masks[1:2, :, :, :].ravel() == 1
    assert 0.05 < mask.mean() < 0.5
    came_from, exact = carried(flow, places, steps=64)
    assert np.mean((exact < THRESHOLD) != mask) < 0.005
    _, divergence = flow(places)
    wrong = [np.mean((np.exp(divergence) < limit) != mask) for limit in np.linspace(0.1, 1, 19)]
    assert min(wrong) > 0.7 * mask.mean()
    # Of pixels beside the cut between two ranks, many were beyond it.
    beside = np.abs(places[1] - SIZE / 2) < 4
    assert np.mean((places[1] < SIZE / 2) != (came_from[1] < SIZE / 2), where=beside) > 0.3


def test_what_lies_beyond_a_border_changes_the_mask_on_this_side(
    flow: Flow, places: np.ndarray
) -> None:
    def half(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        velocity, divergence = flow(at)
        inside = at[1] < SIZE / 2
        return velocity * inside, divergence * inside

    mine = places[:, places[1] < SIZE / 2]
    whole, seen = (carried(known, mine)[1] < THRESHOLD for known in (flow, half))
    assert np.mean(whole != seen) > 0.1 * np.mean(whole)


def test_a_block_is_a_piece_of_the_whole() -> None:
    meshes = FlowMeshes(samples=2, size=32, seed=1)
    for source, channels in ((meshes.inputs, 18), (meshes.masks, 1)):
        whole = source[:, :, :, :]
        assert whole.shape == (2, channels, 32, 32)
        np.testing.assert_allclose(
            source[1:2, :, 5:20, 28:32], whole[1:2, :, 5:20, 28:32], atol=1e-6
        )
        assert source[0:1, :, 3:3, :].shape == (1, channels, 0, 32)
