"""Rank 0 reads a file in each step and scatters it."""

import tempfile
import time

import numpy as np
from mpi4py import MPI

comm, part = MPI.COMM_WORLD, np.zeros(1000)
with tempfile.TemporaryFile() as file:
    if comm.rank == 0:
        file.write(bytes(20_000_000))
    comm.Barrier()
    for _ in range(10):
        whole = None
        if comm.rank == 0:
            file.seek(0)
            content = file.read()
            time.sleep(0.1)
            whole = np.frombuffer(content, count=1000 * comm.size)
        comm.Scatter(whole, part)
        time.sleep(0.02)
