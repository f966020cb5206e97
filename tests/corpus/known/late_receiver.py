"""Rank 1 works before it receives 8 MB."""

import time

import numpy as np
from mpi4py import MPI

comm, data = MPI.COMM_WORLD, np.zeros(1_000_000)
for _ in range(20):
    if comm.rank == 0:
        comm.Send(data, dest=1)
    else:
        time.sleep(0.08)
        comm.Recv(data, source=0)
