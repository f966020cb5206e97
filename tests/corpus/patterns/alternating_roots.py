"""Another rank prepares and broadcasts the data of each step, while the others wait."""

import time

import numpy as np
from mpi4py import MPI

comm, data = MPI.COMM_WORLD, np.zeros(100)
for step in range(40):
    root = step % comm.size
    time.sleep(0.02)
    if comm.rank == root:
        time.sleep(0.06)
    comm.Bcast(data, root=root)
