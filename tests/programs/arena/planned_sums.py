"""hvd_ext on whatever MPI this is: planned calls, the arena in a node and between two."""

from __future__ import annotations

import os

import numpy as np
from mpi4py import MPI

from hvd_ext.allreduce.persistent import PersistentAllreduce
from hvd_ext.job.topology import discover
from tests.support.arena.pretended_nodes import make_arena, pretend, reduce_and_check

topology = discover(MPI.COMM_WORLD, 30.0)
rank, size = topology.world.rank, topology.world.size


def check(planned: PersistentAllreduce) -> None:
    for seed in range(3):
        values = np.arange(len(planned.buffer)) % 11 + seed
        planned.buffer[:] = values * (rank + 1)
        if seed == 2:
            planned.start()
            planned.wait()
        else:
            planned()
        np.testing.assert_array_equal(planned.buffer, values * (size * (size + 1) // 2))


for count in (1, 1000, 300_001):
    check(PersistentAllreduce.in_arena(topology, count, "float32"))
    check(PersistentAllreduce(topology, np.empty(count)))
    check(PersistentAllreduce(topology, np.empty(count), algorithm="native"))
for place in (topology, pretend(MPI.COMM_WORLD, 1)):
    arena = make_arena(place, "ring", timeout_s=30)
    for seed in range(2):
        reduce_and_check(arena, place, seed)
    arena.close()
topology.close()
os.write(1, b"all sums are exact\n")
