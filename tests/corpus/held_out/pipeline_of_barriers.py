"""One rank after another does its part, with a barrier after each."""

import time

from mpi4py import MPI

comm = MPI.COMM_WORLD
for turn in range(40):
    if turn % comm.size == comm.rank:
        time.sleep(0.05)
    comm.Barrier()
