"""Two of four ranks transpose a matrix between them, and the others wait for these in a barrier."""

import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
part = comm.Split(comm.rank < 2, comm.rank)
data = np.zeros(1 << 22)
received = np.zeros_like(data)
for _ in range(25):
    time.sleep(0.01)
    if comm.rank < 2:
        for _ in range(4):
            part.Alltoall(data, received)
    comm.Barrier()
