"""Each rank writes its part of a checkpoint after each step."""

import tempfile
import time

from mpi4py import MPI

comm = MPI.COMM_WORLD
for _ in range(10):
    time.sleep(0.03)
    with tempfile.TemporaryFile() as file:
        file.write(bytes(20_000_000 // comm.size))
        time.sleep(0.1 / comm.size)
    comm.Barrier()
