"""hvd.init() after hvd.shutdown().

Argument: what is used before, "nothing", "mpi4py" before the first hvd.init(), or an "optimizer".
"""

from __future__ import annotations

import sys

import pytest
import torch

import hvd_ext.torch as hvd
from hvd_ext.errors import UsageError

used = sys.argv[1]
if used == "mpi4py":
    from mpi4py import MPI
hvd.init()
if used == "optimizer":
    hvd.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.01))
rank = hvd.rank()
hvd.shutdown()
if used == "mpi4py":
    hvd.init()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == MPI.COMM_WORLD.size
else:
    with pytest.raises(UsageError, match=r"`from mpi4py import MPI` before the first hvd.init"):
        hvd.init()
print(f"ok {rank}", flush=True)
