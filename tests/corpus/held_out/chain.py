"""Rank 2 is late to rank 1, which is late to rank 0 for that reason alone."""

import time

import numpy as np
from mpi4py import MPI

comm, data = MPI.COMM_WORLD, np.zeros(100)
for _ in range(20):
    time.sleep(0.02 if comm.rank < 2 else 0.1)
    if comm.rank < 2:
        comm.Recv(data, source=comm.rank + 1)
    if comm.rank > 0:
        comm.Send(data, dest=comm.rank - 1)
    comm.Barrier()
