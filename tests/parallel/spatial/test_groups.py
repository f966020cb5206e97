"""Spatial layers over MPI's own groups: hybrid grids, permuted ranks, 16 bits, refusals."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from hvd_ext import listen
from hvd_ext.spatial import ProcessGrid, UnsupportedError, gather, scatter

pytestmark = pytest.mark.ranks(4)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_two_sample_groups_of_two_ranks(comm) -> None:
    """The mean over all ranks is the gradient."""
    samples = [draw(1, 2, 7, 6, seed=seed) for seed in (3, 4)]
    weight = draw(3, 2, 3, 3, seed=5).requires_grad_()
    loss = sum(F.conv2d(x, weight, None, 2, 1).square().mean() for x in samples) / 2
    (expected,) = torch.autograd.grad(loss, weight)
    grid = ProcessGrid(height=2)
    assert (grid.sample_group, grid.space.rank) == divmod(comm.rank, 2)
    assert grid.samples.size == 2
    mine = weight.detach().clone().requires_grad_()
    F.conv2d(scatter(samples[grid.sample_group], grid), mine, None, 2, 1).square().mean().backward()
    found = comm.allreduce(mine.grad.numpy()) / comm.size
    torch.testing.assert_close(torch.from_numpy(found), expected)


def test_ranks_that_are_numbered_otherwise(comm) -> None:
    """A grid over ranks that are numbered otherwise than in the world."""
    order = [2, 0, 3, 1]
    permuted = comm.Split(color=0, key=order.index(comm.rank))
    grid = ProcessGrid(height=2, width=2, comm=permuted)
    assert grid.space.rank == order.index(comm.rank)
    x, weight = draw(1, 1, 5, 7), draw(1, 1, 3, 3, seed=1)
    found = gather(F.conv2d(scatter(x, grid), weight, None, 1, 1))
    torch.testing.assert_close(found, F.conv2d(x, weight, None, 1, 1))
    permuted.Free()


def test_16_bits_are_carried(comm) -> None:
    """MPI carries what numpy has no name for."""
    grid = ProcessGrid(width=4)
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.arange(10).to(dtype).view(1, 1, 10)
        assert torch.equal(
            gather(F.pad(scatter(x, grid), (2, 2), "circular")), F.pad(x, (2, 2), "circular")
        )


def test_all_ranks_refuse_alike_and_go_on(comm) -> None:
    """All ranks raise the same, and can go on."""
    grid = ProcessGrid(width=4)
    for operation in (
        lambda x: F.conv1d(x, torch.ones(1, 1, 9)),
        lambda x: x.sort(),
        lambda x: F.pad(x, (6, 0), "reflect"),
    ):
        sentence = "it was not refused"
        try:
            operation(scatter(torch.ones(1, 1, 6), grid))
        except UnsupportedError as refusal:
            sentence = str(refusal)
        (same,) = set(comm.allgather(sentence))
        assert same != "it was not refused"


def test_an_exchange_is_an_event(comm) -> None:
    """Listeners hear of an exchange, with what this rank sent."""
    grid, events = ProcessGrid(width=4), []
    stop = listen(events.append)
    F.conv1d(scatter(torch.ones(2, 3, 16), grid), torch.ones(1, 3, 3), None, 1, 1)
    stop()
    (event,) = events
    neighbours = 1 if comm.rank in (0, 3) else 2
    assert (event.operation, event.message_bytes) == ("halo", neighbours * 2 * 3 * 4)
