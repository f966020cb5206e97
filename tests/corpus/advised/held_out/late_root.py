"""All ranks prepare a part of what the root of a broadcast sends."""

import time

import numpy as np
from mpi4py import MPI

comm, data = MPI.COMM_WORLD, np.zeros(1000)
for _ in range(20):
    time.sleep((0.1 + 3 * 0.02) / comm.size)
    part = np.zeros(len(data) // comm.size)
    whole = data if comm.rank == 0 else None
    comm.Gather(part, whole)
    comm.Bcast(data)
