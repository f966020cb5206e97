"""Communicators on two pretended nodes: lent again, not made again, and freed together."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from hvd_ext.allreduce.persistent import PersistentAllreduce
from hvd_ext.allreduce.table import BUILT_IN
from hvd_ext.arena.bucket_cost import measure_bucket
from hvd_ext.arena.config import ArenaConfig
from hvd_ext.arena.host import HostArena
from hvd_ext.arena.layout import ParameterSpec, layout_by_size
from tests.support.arena.pretended_nodes import pretend

COUNTS = (5, 3000, 70)
SPECS = [ParameterSpec(str(i), (count,), (1,), "float32") for i, count in enumerate(COUNTS)]


def counted(comm):
    """The same communicator, and what is made of it and freed, as it and its copies count."""
    from mpi4py import MPI

    made, freed = [], []

    class Counted(MPI.Intracomm):
        def Dup(self, *arguments):
            made.append(self)
            return Counted(super().Dup(*arguments))

        def Split(self, *arguments):
            made.append(self)
            return Counted(super().Split(*arguments))

        def Free(self):
            freed.append(self)
            super().Free()

    return Counted(comm), made, freed


def exchange(topology) -> HostArena:
    config = ArenaConfig(topology, BUILT_IN, 60.0)
    arena = HostArena(config, layout_by_size(SPECS, 8192), 1.0)
    arena.data.view(np.float32)[:] = topology.world.rank
    for index in range(len(arena.layout.buckets)):
        arena.reduce(index)
    arena.finish()
    assert (arena.data.view(np.float32) == sum(range(topology.world.size))).all()
    return arena


def plan(topology) -> None:
    planned = PersistentAllreduce(topology, np.full(10, topology.world.rank))
    planned.start()
    planned.wait()
    assert (planned.buffer == sum(range(topology.world.size))).all()


@pytest.mark.ranks(4)
def test_communicators_are_lent_again_and_freed_together(comm):
    comm, made, freed = counted(comm)
    topology = pretend(comm, 2)
    exchange(topology).close()
    plan(topology)
    first = len(made)
    for _ in range(100):
        exchange(topology).close()
        plan(topology)
    measure_bucket(ArenaConfig(topology, BUILT_IN, 60.0))
    assert len(made) == first, f"{len(made) - first} more communicators after 100 arenas and plans"
    # Two at a time take two sets, and one that a rank still has is lent to none.
    one, two = exchange(topology), exchange(topology)
    assert len(made) == first + 3
    if comm.rank == 0:
        one.close()
    two.close()
    exchange(topology).close()
    assert len(made) == first + 3
    if comm.rank != 0:
        one.close()
    threads = threading.active_count()
    topology.close()
    assert threading.active_count() < threads, threading.enumerate()
    assert len(freed) == len(made), f"{len(made)} made, {len(freed)} freed"
