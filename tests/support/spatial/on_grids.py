"""Work on emulated grids of ranks, as tests of spatial layers do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hvd_ext.spatial import ProcessGrid
from hvd_ext.spatial.exchange import emulator
from hvd_ext.spatial.exchange.communicator import Communicator


def size_of(grid: Sequence[int]) -> int:
    return grid[0] * grid[1] * grid[2]


def on_grid(grid: Sequence[int], work: Callable[[ProcessGrid], Any], times: int = 1) -> list[Any]:
    """Run `work(grid)` on every rank; `times` sample groups."""

    def rank(comm: Communicator) -> Any:
        return work(ProcessGrid(*grid, comm=comm))

    return emulator.run(size_of(grid) * times, rank)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mean(grid: ProcessGrid, tensor: Tensor) -> Tensor:
    return grid.space.allreduce(tensor) / grid.space.size
