"""Rank 0 ends while the others still use MPI. Argument: how all end, shutdown or exit."""

from __future__ import annotations

import sys
import time

import torch

import hvd_ext.torch as hvd

hvd.init()
torch.set_num_threads(1)
model = torch.nn.Linear(6, 5)
inner = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
model(torch.ones(3, 6)).sum().backward()
optimizer.step()
rank = hvd.rank()
if rank:
    from mpi4py import MPI

    for _ in range(50):
        time.sleep(0.02)
        MPI.COMM_SELF.allgather(rank)
print(f"ok {rank}", flush=True)
if sys.argv[1] == "shutdown":
    hvd.shutdown()
