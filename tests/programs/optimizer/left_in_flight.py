"""Rank 0 ends with an exchange on its way between (pretended) nodes that rank 1 never makes."""

from __future__ import annotations

import time

import torch

import hvd_ext.torch as hvd
from hvd_ext.torch.job import lifecycle
from tests.support.arena.pretended_nodes import pretend

lifecycle.discover = lambda comm, timeout_s: pretend(comm, 1)
lifecycle._LATE_AFTER_S = 1.0
hvd.init()
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
if hvd.rank() == 1:
    time.sleep(300)
model(torch.ones(4)).sum().backward()
hvd.shutdown()
