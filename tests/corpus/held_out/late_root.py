"""The root of a broadcast prepares what it sends."""

import time

import numpy as np
from mpi4py import MPI

comm, data = MPI.COMM_WORLD, np.zeros(1000)
for _ in range(20):
    time.sleep(0.1 if comm.rank == 0 else 0.02)
    comm.Bcast(data)
