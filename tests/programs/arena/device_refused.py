"""What keeps one rank from sharing device memory keeps all from it: no CuPy on the last."""

from __future__ import annotations

import sys

import pytest
from mpi4py import MPI

from hvd_ext.allreduce.table import BUILT_IN
from hvd_ext.arena.config import ArenaConfig
from hvd_ext.arena.cuda.arena import DeviceArena
from hvd_ext.arena.layout import ParameterSpec, layout_by_size
from hvd_ext.job.topology import discover
from hvd_ext.shm.regions import WindowError

topology = discover(MPI.COMM_WORLD, 30)
world = topology.world
plan = layout_by_size([ParameterSpec("a", (100,), (1,), "float32")], 1 << 20)

if world.rank == world.size - 1:
    sys.modules["cupy"] = None
with pytest.raises(WindowError) as refusal:
    DeviceArena(ArenaConfig(topology, BUILT_IN, 30), plan, 1.0, 0, lambda: 0)
reason = str(refusal.value)
assert len(set(world.allgather(reason))) == 1, reason
assert "GPU 0" in reason
assert "cupy" in reason.lower() or "CUDA" in reason, reason
print(f"refused {world.rank}")
