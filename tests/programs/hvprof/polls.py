"""The last rank sends late, or with the argument "late" never.

The others ask for its message: by Test, by Iprobe, or seldom.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from mpi4py import MPI

if __name__ == "__main__":
    comm, data = MPI.COMM_WORLD, np.zeros(8)
    last = comm.size - 1
    comm.Barrier()
    if comm.rank == last:
        time.sleep(600 if "late" in sys.argv else 1.5)
        for rank in range(last):
            comm.Send(data, rank)
    elif comm.rank == 0:
        request = comm.Irecv(data, last)
        while not request.Test():
            pass
    elif comm.rank == 1:
        while not comm.Iprobe(last):
            time.sleep(1e-4)
        comm.Recv(data, last)
    else:
        request = comm.Irecv(data, last)
        while not request.Test():
            time.sleep(0.02)
