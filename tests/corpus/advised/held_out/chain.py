"""All ranks of the chain have the same share of the work."""

import time

import numpy as np
from mpi4py import MPI

comm, data = MPI.COMM_WORLD, np.zeros(100)
for _ in range(20):
    time.sleep((2 * 0.02 + 0.1) / comm.size)
    if comm.rank < 2:
        comm.Recv(data, source=comm.rank + 1)
    if comm.rank > 0:
        comm.Send(data, dest=comm.rank - 1)
    comm.Barrier()
