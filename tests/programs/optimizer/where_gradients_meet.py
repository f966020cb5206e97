"""Trains with more than 1 MiB of gradients; prints how they were exchanged, and where."""

from __future__ import annotations

import logging
import socket

import torch

import hvd_ext.torch as hvd

logging.basicConfig(level=logging.WARNING, format="%(message)s")
hvd.init()
model = torch.nn.Linear(1000, 1000)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(3):
    optimizer.zero_grad()
    model(torch.full((2, 1000), hvd.rank() + 1.0)).sum().backward()
    optimizer.step()
how = optimizer.explain() if hasattr(optimizer, "explain") else "Horovod's own"
print(f"{socket.gethostname()}: {' '.join(how.split())}", flush=True)
hvd.shutdown()
