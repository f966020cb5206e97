"""A forked child ends as programs do, while its parent trains on."""

from __future__ import annotations

import os
import sys
import time

import torch

import hvd_ext.torch as hvd
from hvd_ext.torch.job import lifecycle

hvd.init()
torch.set_num_threads(1)
weight = torch.nn.Parameter(torch.ones(3))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.01))
child = os.fork()
if not child:
    lifecycle._LATE_AFTER_S = 3600.0  # if it waits for other ranks, its parent will notice
    sys.exit(0)
deadline = time.monotonic() + 30
while os.waitpid(child, os.WNOHANG) == (0, 0):
    if time.monotonic() > deadline:
        os.kill(child, 9)
        sys.exit("the child waits for other ranks")
    time.sleep(0.01)
weight.sum().backward()
optimizer.step()
print(f"ok {hvd.rank()}", flush=True)
