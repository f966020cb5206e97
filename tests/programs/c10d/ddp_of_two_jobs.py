"""One rank of a process group whose ranks are MPI jobs of one rank each."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hvd_ext.c10d
from hvd_ext.errors import UsageError

dist.init_process_group("gloo")
try:
    hvd_ext.c10d.attach(DistributedDataParallel(torch.nn.Linear(2, 2)))
except UsageError as error:
    print(error)
dist.destroy_process_group()
