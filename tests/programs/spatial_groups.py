"""Spatial layers over MPI's own groups: hybrid grids, permuted ranks, 16 bits, refusals.

Runs at 4 ranks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from mpi4py import MPI

from hvd_ext import listen
from hvd_ext.spatial import ProcessGrid, UnsupportedError, gather, scatter

world = MPI.COMM_WORLD
assert world.size == 4
torch.set_num_threads(1)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def check_hybrid() -> None:
    """Two sample groups of two ranks: the mean over all ranks is the gradient."""
    samples = [draw(1, 2, 7, 6, seed=seed) for seed in (3, 4)]
    weight = draw(3, 2, 3, 3, seed=5).requires_grad_()
    loss = sum(F.conv2d(x, weight, None, 2, 1).square().mean() for x in samples) / 2
    (expected,) = torch.autograd.grad(loss, weight)
    grid = ProcessGrid(height=2)
    assert (grid.sample_group, grid.space.rank) == divmod(world.rank, 2)
    assert grid.samples.size == 2
    mine = weight.detach().clone().requires_grad_()
    F.conv2d(scatter(samples[grid.sample_group], grid), mine, None, 2, 1).square().mean().backward()
    found = world.allreduce(mine.grad.numpy()) / world.size
    torch.testing.assert_close(torch.from_numpy(found), expected)


def check_permuted() -> None:
    """A grid over ranks that are numbered otherwise than the world."""
    order = [2, 0, 3, 1]
    permuted = world.Split(color=0, key=order.index(world.rank))
    grid = ProcessGrid(height=2, width=2, comm=permuted)
    assert grid.space.rank == order.index(world.rank)
    x, weight = draw(1, 1, 5, 7), draw(1, 1, 3, 3, seed=1)
    found = gather(F.conv2d(scatter(x, grid), weight, None, 1, 1))
    torch.testing.assert_close(found, F.conv2d(x, weight, None, 1, 1))
    permuted.Free()


def check_half() -> None:
    """MPI carries what numpy has no name for."""
    grid = ProcessGrid(width=4)
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.arange(10).to(dtype).view(1, 1, 10)
        assert torch.equal(
            gather(F.pad(scatter(x, grid), (2, 2), "circular")), F.pad(x, (2, 2), "circular")
        )


def check_refusals() -> None:
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
        (same,) = set(world.allgather(sentence))
        assert same != "it was not refused"


def check_events() -> None:
    """An exchange is told to who listens, with what this rank sent."""
    grid, events = ProcessGrid(width=4), []
    stop = listen(events.append)
    F.conv1d(scatter(torch.ones(2, 3, 16), grid), torch.ones(1, 3, 3), None, 1, 1)
    stop()
    (event,) = events
    neighbours = 1 if world.rank in (0, 3) else 2
    assert (event.operation, event.message_bytes) == ("halo", neighbours * 2 * 3 * 4)


check_hybrid()
check_permuted()
check_half()
check_refusals()
check_events()
print(f"ok {world.rank}")
