"""Each rank sends a boundary to the next one before it receives that of the one before."""

import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, last = comm.rank, comm.size - 1
sent, received = np.zeros(1 << 20), np.empty(1 << 20)
for _ in range(20):
    time.sleep(0.005)
    if rank < last:
        comm.Send(sent, dest=rank + 1)
    if rank > 0:
        comm.Recv(received, source=rank - 1)
