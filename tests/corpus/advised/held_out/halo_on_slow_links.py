"""Two ranks exchange float32 in each step, and compute meanwhile."""

import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
sent, received = np.ones(500_000, np.float32), np.zeros(500_000, np.float32)
for _ in range(8):
    requests = [comm.Irecv(received, source=1 - comm.rank), comm.Isend(sent, dest=1 - comm.rank)]
    time.sleep(0.05)
    MPI.Request.Waitall(requests)
