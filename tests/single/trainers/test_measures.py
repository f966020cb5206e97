"""Figures of predictions, learning rates, and which samples are held out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_ext.errors import UsageError
from training.measures import ABSOLUTE_ERROR, CELLS, Measure
from training.rates import halved, scaled, warmed_up
from training.samples.held_out import hold_out


def figures(measure: Measure, *samples: tuple[torch.Tensor, torch.Tensor]) -> dict[str, float]:
    sums = sum(measure.sums(*sample) for sample in samples)
    assert len(sums) == measure.terms
    return dict(zip(measure.figures, measure.values(sums.tolist()), strict=True))


def test_cells_by_hand() -> None:
    # One both, one found only, two marked only, four neither.
    prediction = torch.tensor([0.9, 0.6, 0.5, 0.1, 0, 0, 0, 0])
    target = torch.tensor([1.0, 0, 1, 1, 0, 0, 0, 0])
    expected = {"accuracy": 5 / 8, "precision": 1 / 2, "recall": 1 / 3, "iou": 1 / 4}
    assert figures(CELLS, (prediction, target)) == pytest.approx(expected)


@given(st.integers(0, 2**31))
def test_cells_are_those_of_scikit_learn_whatever_the_samples(seed: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    shares = rng.uniform(0, 1, 2)
    found, marked = (rng.uniform(size=(3, 1, 4, 5)) < share for share in shares)
    pairs = zip(torch.from_numpy(found * 0.8), torch.from_numpy(marked * 1.0), strict=True)
    names = {"precision": "precision", "recall": "recall", "iou": "jaccard"}
    expected = {
        figure: getattr(metrics, f"{name}_score")(marked.ravel(), found.ravel(), zero_division=0)
        for figure, name in names.items()
    }
    expected["accuracy"] = (found == marked).mean()
    assert figures(CELLS, *pairs) == pytest.approx(expected)


def test_the_absolute_error_is_over_all_parameters_and_samples() -> None:
    first = (torch.tensor([[0.5, -0.5]]), torch.tensor([[0.0, 0.5]]))
    second = (torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.5]]))
    assert figures(ABSOLUTE_ERROR, first, second) == {"mae": (0.5 + 1 + 0 + 0.5) / 4}


@pytest.mark.parametrize(
    ("least", "held_out"),
    [(0, []), (1, [2, 5]), (2, [2, 5]), (3, [2, 3, 4, 5]), (4, [2, 3, 4, 5])],
)
def test_groups_are_held_out_whole(least: int, held_out: list[int]) -> None:
    # The last one's cubes do not lie together.
    universes = np.array([7, 7, 3, 5, 5, 3])
    learnt, kept = hold_out(universes, least)
    assert kept.tolist() == held_out
    assert sorted([*learnt, *kept]) == list(range(6))
    assert not set(universes[learnt]) & set(universes[kept])


def test_something_must_be_left_to_learn_from() -> None:
    with pytest.raises(
        UsageError, match="--held-out 3 leaves none of 4 samples, as each of 2 groups"
    ):
        hold_out(np.array([1, 1, 2, 2]), 3)


def test_a_rate_follows_the_batch_and_grows_at_the_start() -> None:
    # MLPerf HPC's CosmoFlow: 0.001 for a batch of 64.
    assert scaled(1e-3, 512, 64, "linear") == pytest.approx(8e-3)
    assert scaled(1e-3, 256, 64, "sqrt") == pytest.approx(2e-3)
    assert scaled(1e-3, 512, None, "linear") == 1e-3
    epochs = [0.5, 1, 4, 40]
    assert [warmed_up(8e-3, 4, epoch) for epoch in epochs] == pytest.approx(
        [1e-3, 2e-3, 8e-3, 8e-3]
    )
    assert warmed_up(8e-3, 0, 0.1) == 8e-3


def test_edsrs_rate_is_halved_after_so_many_steps() -> None:
    steps = (0, 199_999, 200_000, 399_999, 400_000)
    assert [halved(1e-4, step, 200_000) for step in steps] == [1e-4, 1e-4, 5e-5, 5e-5, 2.5e-5]
