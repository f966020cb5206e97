"""`backend_fault.py HOW`: rank 2 of a job on the backend hvd_ext fails, in one of several ways."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from mpi4py import MPI

import hvd_ext.c10d

assert hvd_ext.c10d
how, is_odd = sys.argv[1], MPI.COMM_WORLD.rank == 2
limit = timedelta(seconds=3 if how in ("absent", "group") else 300)


def fail() -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "raise":
        raise ValueError("loss is NaN")
    elif how == "leave":
        sys.exit()
    time.sleep(60)


torch.set_num_threads(1)
dist.init_process_group("hvd_ext", init_method="mpi://", timeout=limit)
dist.all_reduce(torch.ones(4))
if is_odd and how != "exit":
    fail()
if how == "group":
    dist.new_group(timeout=limit)
for _ in range(5):
    dist.all_reduce(torch.ones(300_000), async_op=True)
if how != "exit":
    dist.all_reduce(torch.ones(4))
    print("all done")
