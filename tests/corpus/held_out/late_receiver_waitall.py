"""Rank 0 sends 4 MB to both others without blocking; rank 1 receives late."""

import time

import numpy as np
from mpi4py import MPI

comm, data = MPI.COMM_WORLD, np.zeros(500_000)
for _ in range(15):
    if comm.rank == 0:
        MPI.Request.Waitall([comm.Isend(data, dest=other) for other in (1, 2)])
    else:
        time.sleep(0.12 if comm.rank == 1 else 0.01)
        comm.Recv(data, source=0)
