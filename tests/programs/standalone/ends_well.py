"""Ranks start, exchange, and end without hvd.shutdown(), at different times.

Horovod is not installed, and importing hvd_ext.torch starts nothing.
"""

from __future__ import annotations

import sys
import threading
import time

import torch

import hvd_ext.torch as hvd

assert not hvd.horovods.INSTALLED
assert "mpi4py.MPI" not in sys.modules
assert threading.active_count() == 1
hvd.init()
hvd.init()
assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [hvd.size()] * 3
if hvd.rank() == 0:
    handle = hvd.allreduce_async(torch.ones(3))
    assert not hvd.poll(handle)  # nobody asks for it any more
time.sleep(0.5 * hvd.rank())
print(f"ok {hvd.rank()}", flush=True)
