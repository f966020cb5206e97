"""Ranks start to receive before they send, so that all boundaries move at once."""

import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, last = comm.rank, comm.size - 1
sent, received = np.zeros(1 << 20), np.empty(1 << 20)
for _ in range(20):
    time.sleep(0.005)
    requests = [comm.Irecv(received, source=rank - 1)] if rank > 0 else []
    if rank < last:
        requests.append(comm.Isend(sent, dest=rank + 1))
    MPI.Request.Waitall(requests)
