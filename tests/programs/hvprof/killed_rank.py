"""Reduces 100 times, and then the last rank is killed."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
from mpi4py import MPI

if __name__ == "__main__":
    buffer = np.ones(1000, np.float32)
    for _ in range(100):
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, buffer)
    if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
