"""Each batch passes four stages in many pieces."""

import time

import numpy as np
from mpi4py import MPI

comm, data = MPI.COMM_WORLD, np.zeros(100)
PIECES = 10
for _ in range(8):
    for _ in range(PIECES):
        if comm.rank > 0:
            comm.Recv(data, source=comm.rank - 1)
        time.sleep(0.1 / PIECES)
        if comm.rank < comm.size - 1:
            comm.Send(data, dest=comm.rank + 1)
    comm.Barrier()
