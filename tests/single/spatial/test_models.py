"""Unsplit models over emulated ranks: 5 steps of training equal the unsplit model's."""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest

from hvd_ext.spatial import GridShape, verify
from hvd_ext.spatial.exchange import emulator
from tests.support.spatial.split_models import build, cases, split, unsplit, worst

SAMPLES = 2
# (depth, height, width), and how many groups of ranks have samples of their own.
GRIDS = {
    "mesh": [(1, 2, 1), (1, 1, 4), (1, 2, 4)],
    "unet": [(1, 1, 2), (1, 2, 2), (1, 8, 1)],
    "edsr": [(1, 2, 1), (1, 2, 2), (1, 4, 2)],
    "cosmoflow": [(2, 1, 1), (1, 2, 2), (2, 2, 2)],
}
LONG = [
    *(("resnet50", grid) for grid in ((1, 2, 1), (1, 2, 2), (1, 2, 4))),
    *(("cosmoflow_full", grid) for grid in ((1, 2, 1), (2, 2, 2))),
]
SWEEP = "HVD_EXT_TEST_SWEEP"
HYBRID = [("mesh", (1, 2, 1)), ("unet", (1, 1, 2)), ("cosmoflow", (1, 2, 1))]

unsplit_once = functools.cache(unsplit)


def trained(name: str, grid: tuple[int, int, int], groups: int = 1) -> list[Any]:
    samples = SAMPLES * groups
    model = build(cases(name, samples)[0], dropout=False)
    size = groups * grid[0] * grid[1] * grid[2]
    return emulator.run(size, lambda comm: split(comm, name, samples, grid, model))


@pytest.mark.parametrize(("name", "grid"), [(name, g) for name in GRIDS for g in GRIDS[name]])
def test_training_equals_the_unsplit_models(name: str, grid: tuple[int, int, int]) -> None:
    assert_equal(name, grid)


@pytest.mark.skipif(SWEEP not in os.environ, reason=f"minutes long: set {SWEEP}=1")
@pytest.mark.parametrize(("name", "grid"), LONG)
def test_large_models_on_more_grids(name: str, grid: tuple[int, int, int]) -> None:
    assert_equal(name, grid)


def assert_equal(name: str, grid: tuple[int, int, int]) -> None:
    expected = unsplit_once(name, SAMPLES)
    assert expected[0][-1] != expected[0][0]
    for mine in trained(name, grid):
        assert worst(mine, expected) < 1e-10


@pytest.mark.parametrize(("name", "grid"), HYBRID)
def test_sample_groups_train_as_with_data_parallelism(
    name: str, grid: tuple[int, int, int]
) -> None:
    expected = unsplit_once(name, 2 * SAMPLES, groups=2)
    results = trained(name, grid, groups=2)
    mean = [sum(losses) / len(results) for losses in zip(*(r[0] for r in results), strict=True)]
    assert worst((mean, results[0][1]), expected) < 1e-10


@pytest.mark.parametrize(
    ("name", "shape", "grid"),
    [
        ("resnet50", (2, 3, 64, 64), GridShape(height=2)),
        ("cosmoflow_full", (1, 4, 32, 32, 32), GridShape(depth=2)),
    ],
)
def test_one_step_of_a_large_model(name: str, shape: tuple[int, ...], grid: GridShape) -> None:
    report = verify(build(cases(name, 1)[0], dropout=False), shape, grid)
    assert report.passed, report
