"""`ddp_fault.py HOW [device] [nodes]`: rank 2 of a DDP job that hvd_ext serves fails.

HOW is one of several ways; with "group" the job is ranks 1 and 2 alone. With "device" gradients are
on GPUs of the stand-in, and with "nodes" each rank is a node.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.nn.parallel import DistributedDataParallel

import hvd_ext.c10d

STEPS, AT = 8, 5
how, is_odd = sys.argv[1], MPI.COMM_WORLD.rank == 2


def fail() -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "raise":
        raise ValueError("loss is NaN")
    elif how == "leave":
        sys.exit()
    time.sleep(60)


torch.set_num_threads(1)
if how == "init" and is_odd:
    fail()
limit = timedelta(seconds=3) if how == "timeout" else None
dist.init_process_group("gloo", init_method="mpi://", timeout=limit)
group = None
if how == "group":
    group = dist.new_group([1, 2])
    if dist.get_rank() == 0:
        sys.exit()
layers = [torch.nn.Linear(40, 40) for _ in range(4)]
net = torch.nn.Sequential(*layers)
patch = pytest.MonkeyPatch()
if "device" in sys.argv:
    from tests.support.c10d.device_ddp import on_device

    on_device(patch, 0)
if "nodes" in sys.argv:
    from tests.support.arena.pretended_nodes import pretend

    topology = pretend(MPI.COMM_WORLD, 1)
    patch.setattr("hvd_ext.c10d.ddp.topology_of", lambda group: topology)
if how == "sharded":
    from torch.distributed.fsdp import fully_shard

    from hvd_ext.c10d import fsdp

    model = fully_shard(net)
    fsdp.use(model)
else:
    model = DistributedDataParallel(net, bucket_cap_mb=0.001, process_group=group)
    if how == "attach" and is_odd:
        fail()
    exchange = hvd_ext.c10d.attach(model)
for step in range(STEPS):
    if step == AT and is_odd:
        fail()
    model(torch.randn(2, 40)).sum().backward()
print("all steps done")
