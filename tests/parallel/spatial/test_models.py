"""Unsplit models over MPI's ranks, with hvd_ext.torch's own DistributedOptimizer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

import hvd_ext.torch as hvd
from cosmoflow.data import Universes
from tests.conftest import Launch
from tests.programs.spatial import spatial_memory
from tests.support.spatial.families import FAMILIES, SOLID
from tests.support.spatial.split_models import adam, build, cases, split, unsplit, worst

MEMORY = Path(__file__).parents[2] / "programs" / "spatial" / "spatial_memory.py"
SWEEP = "HVD_EXT_TEST_SWEEP" in os.environ
TWO, THREE, FOUR = (pytest.param(size, marks=pytest.mark.long) for size in (2, 3, 4))
Grid = tuple[int, int, int]


def averaged(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> torch.optim.Optimizer:
    names = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    return hvd.DistributedOptimizer(optimizer, named_parameters=names)


def check(name: str, grid: Grid) -> None:
    """Depth x height x width; ranks that are left form groups with samples of their own."""
    groups = hvd.size() // (grid[0] * grid[1] * grid[2])
    samples = 2 * groups

    model = build(cases(name, samples)[0], dropout=True)
    losses, state = split(None, name, samples, grid, model, wrap=averaged)
    mean = hvd.allreduce(torch.tensor(losses, dtype=torch.float64), name="losses").tolist()
    if hvd.rank() == 0:
        assert worst((mean, state), unsplit(name, samples, groups, dropout=True)) < 1e-10


@pytest.mark.usefixtures("hvd")
@pytest.mark.ranks(TWO, 4)
@pytest.mark.parametrize(
    ("name", "grid"),
    [("unet", (1, 1, 2)), *([("mesh", (1, 2, 1)), ("edsr", (1, 1, 2))] if SWEEP else [])],
)
def test_five_steps_of_pairs_of_ranks_equal_the_unsplit_models(name: str, grid: Grid) -> None:
    check(name, grid)


@pytest.mark.usefixtures("hvd")
@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("name", "grid"), [("cosmoflow", (2, 1, 1)), *([("unet", (1, 2, 2))] if SWEEP else [])]
)
def test_five_steps_of_four_ranks_equal_the_unsplit_models(name: str, grid: Grid) -> None:
    check(name, grid)


@pytest.mark.usefixtures("hvd")
@pytest.mark.ranks(TWO, THREE, 4)
def test_a_unet_learns_by_adam_as_in_one_process() -> None:
    """Whose steps are as large for a small gradient, and so for what is wrong with it."""
    grid = {2: (1, 2, 1), 3: (1, 1, 3), 4: (1, 2, 2)}[hvd.size()]
    model = build(cases("unet", 2)[0], dropout=False)
    losses, _ = split(None, "unet", 2, grid, model, wrap=averaged, learner=adam)
    expected, _ = unsplit("unet", 2, learner=adam)
    assert losses == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.usefixtures("hvd")
@pytest.mark.ranks(2, FOUR)
@pytest.mark.parametrize("name", FAMILIES)
def test_families_that_users_split_train_as_unsplit(name: str) -> None:
    first = 2 if name in SOLID else 1
    check(name, {2: (first, 2 // first, 1), 4: (first, 2 // first, 2)}[hvd.size()])


if SWEEP:  # a skipped test would start its ranks

    @pytest.mark.usefixtures("hvd")
    @pytest.mark.ranks(8)
    def test_five_steps_of_eight_ranks_equal_the_unsplit_models() -> None:
        check("mesh", (1, 2, 2))


@pytest.mark.long
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


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
def test_the_program_that_measures_gpus_is_right_on_cpus(
    launch: Launch, size: int, tmp_path: Path
) -> None:
    """Small models; no time is judged."""
    out = tmp_path / "steps.json"
    done = launch(size, [MEMORY.with_name("gpu_steps.py"), "cpu", str(out)])
    assert done.returncode == 0, done.stdout
    found = json.loads(out.read_text())
    assert list(found) == ["mesh 64x64", "CosmoFlow 32^3"]
    for figures in found.values():
        assert 0 < figures["noise"] < 1e-4
        assert 0 < figures["host_share"] < 1
