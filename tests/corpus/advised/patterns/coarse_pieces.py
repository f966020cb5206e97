"""A master hands out sixty pieces of work to three workers."""

import time

import numpy as np
from mpi4py import MPI

comm, work = MPI.COMM_WORLD, np.zeros(1)
PIECES, WORK_S = 60, 2.0
if comm.rank == 0:
    status, left = MPI.Status(), comm.size - 1
    todo = PIECES
    while left:
        comm.Recv(work, source=MPI.ANY_SOURCE, status=status)
        work[0], todo = todo > 0, todo - 1
        left -= not work[0]
        comm.Send(work, dest=status.source)
else:
    while True:
        comm.Send(work, dest=0)
        comm.Recv(work, source=0)
        if not work[0]:
            break
        time.sleep(WORK_S / PIECES)
comm.Barrier()
