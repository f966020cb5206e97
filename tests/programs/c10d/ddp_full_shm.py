"""Trains a DDP model whose buckets do not fit into /dev/shm; prints how they are exchanged."""

from __future__ import annotations

import logging

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hvd_ext.c10d

logging.basicConfig()
dist.init_process_group("gloo", init_method="mpi://")
model = DistributedDataParallel(torch.nn.Linear(2000, 1000), gradient_as_bucket_view=True)
exchange = hvd_ext.c10d.attach(model)
for step in range(5):
    model.zero_grad()
    model(torch.full((1, 2000), float(dist.get_rank() + step))).sum().backward()
    gradient = next(model.parameters()).grad
    assert gradient is not None
    assert (gradient == 0.5 + step).all(), gradient
if dist.get_rank() == 0:
    print(exchange.explain())
dist.destroy_process_group()
