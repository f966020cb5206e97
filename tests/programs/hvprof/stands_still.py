"""Stands still in the way that is asked for, until it is ended from outside."""

import contextlib
import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

how = sys.argv[1]
world = MPI.COMM_WORLD
rank, size = world.rank, world.size
values = np.ones(1000)
for _ in range(5):
    world.Allreduce(MPI.IN_PLACE, values)

if how == "sleeps":
    if rank == size - 1:
        time.sleep(600)
elif how == "stopped":
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
elif how == "killed":
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
elif how == "mismatch":
    if rank == 1:
        world.Bcast(values, root=0)
elif how == "circle":
    world.Recv(values, source=(rank + 1) % size)
elif how == "chain":
    # 0 has a message to come from 1, which is to hear from the last rank.
    if rank == 0:
        world.Irecv(values, source=1).Wait()
    elif rank == 1:
        world.Recv(values, source=size - 1)
    elif rank == size - 1:
        time.sleep(600)
elif how == "failed call":
    # It fails on every rank, and has no number.
    world.Set_errhandler(MPI.ERRORS_RETURN)
    with contextlib.suppress(MPI.Exception):
        world.Bcast(values, root=size + 1)
    if rank == 0:
        time.sleep(600)
elif how == "finalizes":
    if rank == 1:
        sys.exit()
elif how == "large":
    for _ in range(10**9):
        world.Allreduce(MPI.IN_PLACE, np.ones(1 << 18))
elif how == "tags":
    # Small enough to be sent before it is received.
    if rank == 1:
        for tag in (3, 7):
            world.Send(values[:8], 0, tag)
    elif rank == 0:
        world.Recv(values, 1, tag=3)
        world.Recv(values, 1, tag=8)
elif how == "probes":
    if rank == 0:
        while not world.Iprobe(1, tag=8):
            pass
    elif rank == 1:
        time.sleep(600)
elif how == "any source":
    world.Recv(values, MPI.ANY_SOURCE)
elif how == "fence":
    window = MPI.Win.Allocate(8, comm=world)
    window.Fence()
    if rank == 1:
        time.sleep(600)
    window.Fence()
elif how == "loads":
    if rank == 1:
        import slow_samples

        for _ in slow_samples.loader():
            pass
elif how == "writes":
    for call in range(10**9):
        world.Allreduce(MPI.IN_PLACE, values[: call % 7 + 1])
world.Allreduce(MPI.IN_PLACE, values)
