"""Even ranks and large sums, a small part of the time."""

import time

import numpy as np
from mpi4py import MPI

comm, data = MPI.COMM_WORLD, np.zeros(10_000)
for _ in range(40):
    time.sleep(0.05)
    comm.Allreduce(MPI.IN_PLACE, data)
