"""A token travels a ring, and ranks work before it arrives."""

import time

import numpy as np
from mpi4py import MPI

comm, token = MPI.COMM_WORLD, np.zeros(1)
left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
for step in range(10):
    time.sleep(0.05)
    if comm.rank or step:
        comm.Recv(token, source=left)
    if comm.rank < comm.size - 1 or step < 9:
        comm.Send(token, dest=right)
