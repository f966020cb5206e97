"""Rank 0 works before it sends; rank 1 has nothing else to do."""

import time

import numpy as np
from mpi4py import MPI

comm, data = MPI.COMM_WORLD, np.zeros(1000)
for _ in range(20):
    if comm.rank == 0:
        time.sleep(0.08)
        comm.Send(data, dest=1)
    else:
        time.sleep(0.01)
        comm.Recv(data, source=0)
