"""Groups of ranks: samples apart, ranks in another order, every grid of eight."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hvd_ext.spatial import ProcessGrid, gather, scatter
from hvd_ext.spatial.exchange import emulator
from hvd_ext.spatial.exchange.communicator import Communicator
from tests.support.spatial.on_grids import normal, on_grid, size_of


def test_sample_groups_do_not_mix() -> None:
    """2 x 2 hybrid: group rank is not global rank; the mean over all ranks is right."""
    samples = [normal(1, 2, 7, seed=seed) for seed in (3, 4)]
    model = nn.Conv1d(2, 3, 3, 2, 1).double()
    loss = sum(F.mse_loss(model(x), torch.zeros(1, 3, 4).double()) for x in samples) / 2
    expected = torch.autograd.grad(loss, list(model.parameters()))

    def rank(comm: Communicator) -> list[Tensor]:
        grid = ProcessGrid(width=2, comm=comm)
        assert grid.sample_groups == 2
        assert (grid.sample_group, grid.space.rank) == divmod(comm.rank, 2)
        x = samples[grid.sample_group]
        mine = [p.detach().clone().requires_grad_() for p in model.parameters()]
        y = F.conv1d(scatter(x, grid), *mine, 2, 1)
        F.mse_loss(y, torch.zeros(1, 3, 4).double()).backward()
        # As Horovod would: the mean over all ranks.
        return [comm.allreduce(p.grad) / comm.size for p in mine]

    for found in emulator.run(4, rank):
        for mine, true in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, true)


def test_permuted_ranks() -> None:
    x, w = normal(1, 1, 9), normal(1, 1, 3, seed=1)
    expected = F.conv1d(x, w, None, 1, 1)

    def rank(comm: Communicator) -> Tensor:
        order = [2, 0, 3, 1]
        grid = ProcessGrid(width=4, comm=comm.group(order))
        assert grid.space.rank == order.index(comm.rank)
        return gather(F.conv1d(scatter(x, grid), w, None, 1, 1))

    for found in emulator.run(4, rank):
        torch.testing.assert_close(found, expected)


def test_all_grids_of_eight_agree() -> None:
    """One network over one, two and three axes."""
    x, w = normal(1, 2, 6, 7, 5), normal(2, 2, 3, 3, 3, seed=1)

    def network(y: Any) -> Any:
        y = F.conv3d(y, w, None, 1, 1).relu()
        y = F.max_pool3d(y, 2, 2)
        y = F.conv3d(y, w, None, 2, 2, 2)
        return F.interpolate(y, scale_factor=2, mode="trilinear") + 1

    expected = network(x)
    for grid in itertools.product((1, 2, 4, 8), repeat=3):
        if size_of(grid) == 8:
            for found in on_grid(grid, lambda shape: gather(network(scatter(x, shape)))):
                torch.testing.assert_close(found, expected)
