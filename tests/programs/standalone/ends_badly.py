"""One rank does not come to a collective of the others: how it ends is the argument.

Arguments: the rank, and "raises", "exits", "shuts down", "asks and shuts down", "sleeps" or
"is killed".
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
from mpi4py import MPI

import hvd_ext.torch as hvd

assert not hvd.horovods.INSTALLED
which, how = int(sys.argv[1]), sys.argv[2]
hvd.init()
assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
if hvd.rank() == which:
    if how == "raises":
        raise ValueError("boom")
    if how == "exits":
        sys.exit(0)
    if how == "asks and shuts down":
        hvd.allreduce_async(torch.ones(1), name="alone")
    if how.endswith("shuts down"):
        last = hvd.size() - 1
        hvd.shutdown()
        MPI.COMM_WORLD.isend(None, dest=last)
        sys.exit(0)
    if how == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(100)
if how == "asks and shuts down" and hvd.rank() == hvd.size() - 1:
    MPI.COMM_WORLD.recv(source=which)  # asks when that one has left
hvd.allreduce(torch.ones(1), name="alone")
print("came through", flush=True)
