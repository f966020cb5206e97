"""Rank 0 sends 4 MB to both others without blocking, and all have the same share of the work."""

import time

import numpy as np
from mpi4py import MPI

comm, data = MPI.COMM_WORLD, np.zeros(500_000)
for _ in range(15):
    time.sleep((0.12 + 0.01) / comm.size)
    if comm.rank == 0:
        MPI.Request.Waitall([comm.Isend(data, dest=other) for other in (1, 2)])
    else:
        comm.Recv(data, source=0)
