"""The workers look at their results, and the master only hands out work."""

import time

import numpy as np
from mpi4py import MPI

comm, work = MPI.COMM_WORLD, np.zeros(10)
ROUNDS = 15
if comm.rank == 0:
    for _ in range(ROUNDS * (comm.size - 1)):
        status = MPI.Status()
        comm.Recv(work, source=MPI.ANY_SOURCE, status=status)
        comm.Send(work, dest=status.source)
else:
    for _ in range(ROUNDS):
        time.sleep(0.02 + 0.05)
        comm.Send(work, dest=0)
        comm.Recv(work, source=0)
