"""Two ranks exchange 4 MB in each step over a slow link."""

import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
sent, received = np.ones(500_000), np.zeros(500_000)
for _ in range(8):
    time.sleep(0.05)
    comm.Sendrecv(sent, dest=1 - comm.rank, recvbuf=received, source=1 - comm.rank)
