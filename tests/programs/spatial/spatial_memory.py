"""Train CosmoFlow, each rank with so much memory beyond what it has at the start.

`spatial_memory.py MIB`: a rank that needs more gets an error, as under `ulimit -v`. Every
rank makes its own block of the cube. Prints the losses of two steps.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cosmoflow.data import Universes
from cosmoflow.model import CosmoFlow
from hvd_ext import spatial

WIDTH = 128
DOES_NOT_FIT = 3


def build() -> CosmoFlow:
    """The published net for cubes of 128, with half its features and without dropout."""
    torch.manual_seed(1)
    return CosmoFlow(WIDTH, thin=2).eval()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-2)


def train(model: nn.Module, optimizer: Any, cube: Any, label: Any) -> list[float]:
    """The losses of two steps."""
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(cube), label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> int:
    import hvd_ext.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    # Along the width: torch chooses its kernel for 3-D convolutions by the other lengths, and
    # the one it takes for short ones needs many times the memory.
    grid = spatial.ProcessGrid(width=hvd.size())
    model: nn.Module = build()
    if hvd.size() > 1:
        spatial.convert(model, grid)
    optimizer = hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters())
    # Everything that a step needs besides the sample is in place after one without.
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit_bytes = pages * resource.getpagesize() + int(sys.argv[1]) * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    universes = Universes(1, WIDTH, seed=1)
    try:
        cube: Any = spatial.read(universes.cubes, grid, [0])
        label = spatial.read(universes.labels, grid, [0])
        if hvd.size() == 1:
            cube = cube.local
        losses = train(model, optimizer, cube, label)
    except (RuntimeError, MemoryError) as error:
        print(f"does not fit: {str(error).splitlines()[0]}", flush=True)
        return DOES_NOT_FIT
    if hvd.rank() == 0:
        print("losses", *losses, flush=True)
    hvd.barrier()
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
