"""Rank 0 does not reach a halo exchange: rank 1 ends, and names it by its number in the world.

Runs at 2 ranks, which the grid numbers the other way round.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.nn.functional as F
from mpi4py import MPI

from hvd_ext.errors import StallError
from hvd_ext.spatial import ProcessGrid, scatter

world = MPI.COMM_WORLD
grid = ProcessGrid(width=2, comm=world.Split(key=-world.rank))
x = scatter(torch.ones(1, 1, 8), grid)
if world.rank == 1:
    try:
        F.conv1d(x, torch.ones(1, 1, 3))
    except StallError as error:
        print(f"ended: {error}", flush=True)
        world.Abort(error.exit_code)
    sys.exit("the exchange ended without rank 0")
time.sleep(60)
