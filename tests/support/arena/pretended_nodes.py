"""Ranks of one machine that are told that only so many of them share memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.allreduce.table import Row, Table
from hvd_ext.arena.config import ArenaConfig
from hvd_ext.arena.host import HostArena
from hvd_ext.arena.layout import ParameterSpec, layout_by_size
from hvd_ext.dtypes import DTYPES
from hvd_ext.job.topology import Topology

if TYPE_CHECKING:
    from mpi4py import MPI

COUNTS = [0, 1, 5, 16, 17, 1000, 4097, 70_001]
SCALE = 0.5


def pretend(comm: MPI.Intracomm, ranks_per_node: int) -> Topology:
    """The topology of ranks of which each so many are a node."""
    return pretend_sizes(comm, [ranks_per_node] * -(-comm.size // ranks_per_node))


def pretend_sizes(comm: MPI.Intracomm, sizes: Sequence[int]) -> Topology:
    """The topology of consecutive ranks on nodes of these sizes; the last may have fewer."""
    of_rank = [number for number, size in enumerate(sizes) for _ in range(size)]
    return pretend_nodes(comm, of_rank[: comm.size])


def pretend_nodes(comm: MPI.Intracomm, of_rank: Sequence[int]) -> Topology:
    """The topology of ranks of which those with the same number are a node."""
    world = comm.Dup()
    node = world.Split(of_rank[world.rank], world.rank)
    cross = world.Split(node.rank, world.rank)
    hosts = tuple(f"node{number}" for number in of_rank)
    sizes = {of_rank.count(number) for number in of_rank}
    return Topology(world, node, cross, hosts, len(sizes) == 1)


def make_arena(topology: Topology, algorithm: str, timeout_s: float) -> HostArena:
    """An arena of several buckets, which nodes reduce by this algorithm."""
    table = Table((Row(0, 0, "host", ((0, algorithm),)),), "a test")
    specs = [
        ParameterSpec(f"{dtype}{count}", (count,), (1,), dtype)
        for dtype in ("float32", "float64")
        for count in COUNTS
    ]
    config = ArenaConfig(topology, table, timeout_s)
    return HostArena(config, layout_by_size(specs, 32 << 10), SCALE)


def reduce_and_check(arena: HostArena, topology: Topology, seed: int) -> None:
    """Fill the arena, reduce it, and compare with what all ranks' values add up to."""
    rank, size = topology.world.rank, topology.world.size
    views = [
        arena.data[span.offset_bytes :][: span.count * DTYPES[bucket.dtype].item_bytes].view(
            bucket.dtype
        )
        for bucket in arena.layout.buckets
        for span in bucket.spans
    ]
    for view in views:
        view[:] = (np.arange(len(view)) % 13 + rank + seed) * 2
    for index in range(len(arena.layout.buckets)):
        arena.reduce(index)
    arena.finish()
    for view in views:
        expected = size * (np.arange(len(view)) % 13 + seed) + sum(range(size))
        np.testing.assert_array_equal(view, expected)
    # No rank begins to overwrite what another one still compares.
    topology.world.Barrier()
