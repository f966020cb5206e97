"""Each rank reads its part of a file in each step, and nothing is scattered."""

import tempfile
import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
PART = 20_000_000 // comm.size
with tempfile.TemporaryFile() as file:
    file.write(bytes(PART))
    comm.Barrier()
    for _ in range(10):
        file.seek(0)
        content = file.read()
        time.sleep(0.1 / comm.size)
        part = np.frombuffer(content, count=1000)
        time.sleep(0.02)
