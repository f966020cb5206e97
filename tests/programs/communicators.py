"""Communicators on two pretended nodes: lent again, not made again, and freed together.

Run at 4 ranks.
"""

from __future__ import annotations

import threading

import numpy as np
from mpi4py import MPI

from hvd_ext.allreduce.persistent import PersistentAllreduce
from hvd_ext.allreduce.table import BUILT_IN
from hvd_ext.arena.bucket_cost import measure_bucket
from hvd_ext.arena.host import HostArena
from hvd_ext.arena.layout import ParameterSpec, layout_by_size
from hvd_ext.job.topology import Topology

made, freed = [], []


class Counted(MPI.Intracomm):
    """Counts how often it and its copies are copied, split and freed."""

    def Dup(self, *arguments):
        made.append(self)
        return Counted(super().Dup(*arguments))

    def Split(self, *arguments):
        made.append(self)
        return Counted(super().Split(*arguments))

    def Free(self):
        freed.append(self)
        super().Free()


world = Counted(MPI.COMM_WORLD).Dup()
rank, size = world.rank, world.size
node = world.Split(rank // 2, rank)
cross = world.Split(node.rank, rank)
topology = Topology(world, node, cross, tuple(f"node{r // 2}" for r in range(size)), True)
specs = [ParameterSpec(str(i), (count,), (1,), "float32") for i, count in enumerate((5, 3000, 70))]


def exchange() -> HostArena:
    arena = HostArena(topology, layout_by_size(specs, 8192), 1.0, BUILT_IN, 60.0)
    arena.data.view(np.float32)[:] = rank
    for index in range(len(arena.layout.buckets)):
        arena.reduce(index)
    arena.finish()
    assert (arena.data.view(np.float32) == sum(range(size))).all()
    return arena


def plan() -> None:
    planned = PersistentAllreduce(topology, np.full(10, rank))
    planned.start()
    planned.wait()
    assert (planned.buffer == sum(range(size))).all()


exchange().close()
plan()
first = len(made)
for _ in range(100):
    exchange().close()
    plan()
measure_bucket(topology, BUILT_IN, 60.0)
assert len(made) == first, f"{len(made) - first} more communicators after 100 arenas and plans"

# Two at a time take two sets, and one that a rank still has is lent to none.
one, two = exchange(), exchange()
assert len(made) == first + 3
if rank == 0:
    one.close()
two.close()
exchange().close()
assert len(made) == first + 3
if rank != 0:
    one.close()

threads = threading.active_count()
topology.close()
assert threading.active_count() < threads, threading.enumerate()
assert len(freed) == len(made), f"{len(made)} made, {len(freed)} freed"
print(f"ok {rank}")
