"""Unsplit models over MPI's ranks, with hvd_ext.torch's own DistributedOptimizer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from cosmoflow.data import Universes
from tests.conftest import Launch
from tests.programs import spatial_memory

PROGRAM = Path(__file__).parents[1] / "programs" / "spatial_models.py"
MEMORY = PROGRAM.with_name("spatial_memory.py")


# Depth x height x width; ranks that are left form groups with samples of their own.
CASES = [(2, "unet", "1x1x2"), (4, "cosmoflow", "2x1x1")]
LONG = [(2, "mesh", "1x2x1"), (2, "edsr", "1x1x2"), (4, "unet", "1x2x2"), (8, "mesh", "1x2x2")]
SWEEP = "HVD_EXT_TEST_SWEEP"


@pytest.mark.parametrize(("size", "name", "grid"), [*CASES, *(LONG if SWEEP in os.environ else [])])
def test_five_steps_equal_the_unsplit_models(
    launch: Launch, size: int, name: str, grid: str
) -> None:
    done = launch(size, [PROGRAM, name, grid])
    assert done.returncode == 0, done.stdout
    assert "worst" in done.stdout


def test_a_sample_that_does_not_fit_one_rank_is_trained_by_several(launch: Launch) -> None:
    """A cube of 128 takes some 320 MiB on one rank, 200 on two; no rank is given more than 256."""
    # What is freed goes back to the system at once, and does not count.
    env = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
    alone = launch(1, [MEMORY, "256"], env=env)
    assert "does not fit" in alone.stdout
    assert alone.returncode == spatial_memory.DOES_NOT_FIT
    universes = Universes(1, spatial_memory.WIDTH, seed=1)
    model = spatial_memory.build()
    cube = torch.from_numpy(universes.cubes[(slice(None),) * 5])
    label = torch.from_numpy(universes.labels[:, :])
    expected = spatial_memory.train(model, spatial_memory.sgd(model), cube, label)
    for size in (2, 4):
        done = launch(size, [MEMORY, "256"], env=env)
        assert done.returncode == 0, done.stdout
        line = next(line for line in done.stdout.splitlines() if "losses" in line)
        assert [float(loss) for loss in line.split()[-2:]] == pytest.approx(expected, rel=1e-4)
