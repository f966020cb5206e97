"""The last rank is killed between two rounds, and the others must not wait for it."""

from __future__ import annotations

import os
import signal

import torch
from mpi4py import MPI

from hvd_ext.allreduce.table import BUILT_IN
from hvd_ext.arena.config import ArenaConfig
from hvd_ext.arena.cuda.arena import DeviceArena
from hvd_ext.arena.layout import ParameterSpec, layout_by_size
from hvd_ext.job.topology import discover

rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
device = rank % torch.cuda.device_count()
torch.cuda.set_device(device)
plan = layout_by_size([ParameterSpec("a", (10_000_000,), (1,), "float32")], 1 << 24)
arena = DeviceArena(
    ArenaConfig(discover(MPI.COMM_WORLD, 60), BUILT_IN, 20),
    plan,
    1.0,
    device,
    lambda: torch.cuda.current_stream(device).cuda_stream,
)
for number in range(5):
    if number == 2 and rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for index in range(len(plan.buckets)):
        arena.reduce(index)
    arena.finish()
    torch.cuda.synchronize()
print("all rounds done", flush=True)
