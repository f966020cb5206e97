"""The last rank fails the others. Argument: how.

construct: it never makes its optimizer; step: it never comes to the third step;
die: it is killed before the third step; leave: it ends, with success, before it; late:
it comes later to the third step than another rank ends by an error of the program's own.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

import hvd_ext.torch as hvd
from hvd_ext.job import stalls
from hvd_ext.torch.job import lifecycle

# How long ranks wait, once one is known to be missing, for what does not come.
stalls.end_job.__defaults__ = (2.0,)
lifecycle._LATE_AFTER_S = 1.0

how = sys.argv[1]
hvd.init()
last = hvd.rank() == hvd.size() - 1
model = torch.nn.Linear(100, 100)
if how == "construct" and last:
    time.sleep(600)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(5):
    if step == 2 and last:
        if how == "step":
            time.sleep(600)
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "leave":
            os._exit(0)
        if how == "late":
            time.sleep(3)
    optimizer.zero_grad()
    model(torch.ones(1, 100)).sum().backward()
    if how == "late" and step == 2 and hvd.rank() == 0:
        raise ValueError("loss is NaN")
    optimizer.step()
print("all steps done")
