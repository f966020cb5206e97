"""Rank 1 does not come to a halo exchange: rank 0 must end, and name it."""

from __future__ import annotations

import sys
import time

import torch
import torch.nn.functional as F
from mpi4py import MPI

from hvd_ext.errors import StallError
from hvd_ext.spatial import ProcessGrid, scatter

grid = ProcessGrid(width=2)
x = scatter(torch.ones(1, 1, 8), grid)
if MPI.COMM_WORLD.rank == 0:
    try:
        F.conv1d(x, torch.ones(1, 1, 3))
    except StallError as error:
        print(f"ended: {error}", flush=True)
        MPI.COMM_WORLD.Abort(error.exit_code)
    sys.exit("the exchange came to an end without rank 1")
time.sleep(60)
