"""Trains until a file is there: steps of computing and of an allreduce, as it is asked for.

Instead of the file some seconds may be given.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import hvprof

how, file = sys.argv[1], Path(sys.argv[2])
seconds = float(sys.argv[2]) if sys.argv[2].isdecimal() else 600
world = MPI.COMM_WORLD
gradients, word, goes_on = np.ones(100_000), np.ones(1), np.ones(1)
end_s = time.monotonic() + seconds
while goes_on[0]:
    if how == "small":
        # Calls of one size: bytes follow from their number.
        for _ in range(1000):
            world.Allreduce(MPI.IN_PLACE, word)
    else:
        with hvprof.region("forward"):
            if how == "busy":
                until_s = time.thread_time() + 0.01
                while time.thread_time() < until_s:
                    pass
            else:
                time.sleep(0.04 if how == "slow" and world.rank == 1 else 0.01)
        world.Allreduce(MPI.IN_PLACE, gradients)
    goes_on[0] = time.monotonic() < end_s and not file.exists()
    world.Bcast(goes_on)
    if how == "dies" and not goes_on[0] and world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if how != "unmarked":
        hvprof.step()
