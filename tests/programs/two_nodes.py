"""The arena on several nodes: ranks are told that only pairs of them share memory.

Arguments: the algorithm between nodes, and how many ranks a node has; with "missing"
after them, the last rank never comes; with "no-memory", the second node has none to share.
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np
import pytest
from mpi4py import MPI

from hvd_ext.allreduce.table import Row, Table
from hvd_ext.arena.host import HostArena
from hvd_ext.arena.layout import ParameterSpec, layout_by_size
from hvd_ext.dtypes import DTYPES
from hvd_ext.job.topology import Topology
from hvd_ext.shm.regions import WindowError

COUNTS = [0, 1, 5, 16, 17, 1000, 4097, 70_001]


def pretend(ranks_per_node: int) -> Topology:
    world = MPI.COMM_WORLD.Dup()
    node = world.Split(world.rank // ranks_per_node, world.rank)
    cross = world.Split(node.rank, world.rank)
    hosts = tuple(f"node{rank // ranks_per_node}" for rank in range(world.size))
    return Topology(world, node, cross, hosts, world.size % ranks_per_node == 0)


def main() -> None:
    algorithm, ranks_per_node = sys.argv[1], int(sys.argv[2])
    topology = pretend(ranks_per_node)
    rank, size = topology.world.rank, topology.world.size
    table = Table((Row(0, 0, "host", ((0, algorithm),)),), "a test")
    timeout_s = 4 if "missing" in sys.argv else 60
    specs = [
        ParameterSpec(f"{dtype}{count}", (count,), (1,), dtype)
        for dtype in ("float32", "float64")
        for count in COUNTS
    ]
    plan = layout_by_size(specs, 32 << 10)
    if "no-memory" in sys.argv:
        if rank >= ranks_per_node:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with pytest.raises(WindowError, match="on node1: "):
            HostArena(topology, plan, 0.5, table, timeout_s)
        print(f"refused {rank}")
        return
    arena = HostArena(topology, plan, 0.5, table, timeout_s)
    if "missing" in sys.argv and rank == size - 1:
        time.sleep(300)
    for repetition in range(3):
        for bucket in plan.buckets:
            for slot in bucket.spans:
                view = of(arena, bucket.dtype, slot)
                view[:] = (np.arange(slot.count) % 13 + rank + repetition) * 2
        for index in range(len(plan.buckets)):
            arena.reduce(index)
        arena.finish()
        for bucket in plan.buckets:
            for slot in bucket.spans:
                expected = size * (np.arange(slot.count) % 13 + repetition) + sum(range(size))
                assert np.array_equal(of(arena, bucket.dtype, slot), expected)
        topology.world.Barrier()
    arena.close()
    print(f"ok {rank}")


def of(arena, dtype, slot):
    count_bytes = slot.count * DTYPES[dtype].item_bytes
    return arena.data[slot.offset_bytes :][:count_bytes].view(dtype)


if __name__ == "__main__":
    main()
