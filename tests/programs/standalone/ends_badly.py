"""One rank does not come to a collective of the others: how it ends is the argument.

Arguments: the rank, and "raises", "exits", "shuts down", "sleeps" or "is killed".
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

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
    if how == "shuts down":
        hvd.shutdown()
        sys.exit(0)
    if how == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(100)
hvd.allreduce(torch.ones(1), name="alone")
print("came through", flush=True)
