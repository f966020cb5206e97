"""Each of as many ranks as there are cores does the work of two."""

import hashlib

import numpy as np
from mpi4py import MPI

comm, data, block = MPI.COMM_WORLD, np.zeros(100), bytes(20_000_000)
for _ in range(30):
    for _ in range(4 // comm.size):
        hashlib.sha256(block).digest()
    comm.Allreduce(MPI.IN_PLACE, data)
