"""One rank of a process group whose ranks are MPI jobs of one rank each."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hvd_ext.c10d

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(2, 2))
exchange = hvd_ext.c10d.attach(model)
model(torch.ones(3, 2)).sum().backward()
assert model.module.bias.grad.tolist() == [3.0, 3.0]
print(exchange.explain())
dist.destroy_process_group()
