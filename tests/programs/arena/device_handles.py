"""An arena's memory is used again once nothing refers to it, and peers have it open still."""

from __future__ import annotations

import gc

import torch
from mpi4py import MPI

from hvd_ext.allreduce.table import BUILT_IN
from hvd_ext.arena.config import ArenaConfig
from hvd_ext.arena.cuda import ipc
from hvd_ext.arena.cuda.arena import DeviceArena
from hvd_ext.arena.layout import ParameterSpec, layout_by_size
from hvd_ext.job.topology import discover

rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
device = rank % torch.cuda.device_count()
torch.cuda.set_device(device)
topology = discover(MPI.COMM_WORLD, 60)
plan = layout_by_size([ParameterSpec("a", (1_000_000,), (1,), "float32")], 1 << 20)


def exchange() -> int:
    arena = DeviceArena(
        ArenaConfig(topology, BUILT_IN, 30),
        plan,
        1.0,
        device,
        lambda: torch.cuda.current_stream(device).cuda_stream,
    )
    memory = torch.from_dlpack(arena.data).view(torch.float32)
    assert not memory.any()
    memory.fill_(rank + 1)
    for index in range(len(plan.buckets)):
        arena.reduce(index)
    arena.finish()
    assert bool((memory == size * (size + 1) // 2).all())
    arena.close()
    arena.close()
    return memory.data_ptr()


places = []
for _ in range(3):
    places.append(exchange())
    gc.collect()
assert len(set(places)) == 1, places
assert (ipc._opened.misses, ipc._opened.hits) == (size - 1, 2 * (size - 1))
print(f"ok {rank}", flush=True)
