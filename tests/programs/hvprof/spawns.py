"""A job of one rank that starts another of two; each reduces in its own world."""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI

if __name__ == "__main__":
    parent = MPI.Comm.Get_parent()
    one = np.ones(1)
    if parent == MPI.COMM_NULL:
        between = MPI.COMM_SELF.Spawn(sys.executable, [__file__], maxprocs=2)
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, one)
        between.Disconnect()
    else:
        for _ in range(3):
            MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, one)
        parent.Disconnect()
