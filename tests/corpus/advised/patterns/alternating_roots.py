"""Another rank broadcasts the data of each step; it has prepared them while the others worked."""

import time

import numpy as np
from mpi4py import MPI

comm, data = MPI.COMM_WORLD, np.zeros(100)
for first in range(0, 40, comm.size):
    time.sleep(0.06)
    for root in range(comm.size):
        time.sleep(0.02 if first + root < 40 else 0.0)
        comm.Bcast(data, root=root)
