"""Nodes with different numbers of ranks: all of them take the same algorithm, whoever asks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hvd_ext.allreduce import agreed
from hvd_ext.allreduce.persistent import PersistentAllreduce, allreduce
from hvd_ext.allreduce.table import Row, Table
from hvd_ext.c10d.collectives import SETTING, describe
from hvd_ext.engine.collectives import levels
from hvd_ext.engine.several_nodes import SeveralNodes
from hvd_ext.shm.block import Block
from hvd_ext.torch import planned
from hvd_ext.torch.job import lifecycle
from tests.ranks.asserts import parallel_assert
from tests.support.arena.pretended_nodes import pretend_sizes

SIZES = {3: ([2, 1], [1, 2]), 4: ([3, 1], [1, 3], [2, 1, 1], [2, 2])}
COUNTS = (1, 1000, 70_001)
# What a measurement of each number of ranks may have found.
TABLE = Table(
    tuple(
        Row(0, ranks, memory, choices, dtype_class)
        for memory in ("host", "arena")
        for ranks, by_class in {
            1: (((0, "ring"),), ((0, "tree"),)),
            2: (((0, "recursive_doubling"), (1000, "rabenseifner")), ((0, "ring"),)),
            3: (((0, "tree"), (4000, "shared_memory")), ((0, "recursive_doubling"),)),
        }.items()
        for dtype_class, choices in zip(("float", "any"), by_class, strict=True)
    ),
    "a test",
)


@pytest.fixture
def uneven(comm, monkeypatch):
    """A topology of nodes of these sizes, which all parts of hvd_ext are told."""
    for module in (agreed, planned, levels):
        monkeypatch.setattr(module, "read_table", lambda _: TABLE)

    def of(sizes):
        topology = pretend_sizes(comm, sizes)
        monkeypatch.setattr(lifecycle, "topology", lambda: topology)
        return topology

    return of


def check(comm, topology, hvd, dtype: str) -> None:
    size, chosen = comm.size, []
    for count in COUNTS:
        given = (np.arange(count) % 11 + comm.rank).astype(dtype)
        total = size * (np.arange(count) % 11) + size * (size - 1) // 2
        tensor = torch.from_numpy(given.copy())
        plan = hvd.plan_allreduce(tensor, hvd.Sum)
        plan()
        started = given.copy()
        in_background = PersistentAllreduce(topology, started, table=TABLE)
        in_background.start()
        in_background.wait()
        window = PersistentAllreduce.in_arena(topology, count, dtype, table=TABLE)
        window.buffer[:] = given
        window()
        once = given.copy()
        allreduce(topology, once, table=TABLE)
        messages = SeveralNodes(topology, 60.0, describe, SETTING)
        by_backend = given.copy()
        named = messages.all_reduce(Block.of(by_backend), dtype, "sum", 1.0)
        messages.close(True)
        for found in (tensor.numpy(), started, window.buffer, once, by_backend):
            parallel_assert(comm, np.array_equal(found, total), f"{found}, not {total}")
        chosen += [plan.algorithm, in_background.algorithm, window.algorithm, named]
    everyones = comm.allgather(chosen)
    parallel_assert(comm, everyones.count(chosen) == size, everyones)


@pytest.mark.ranks(3, 4, timeout_s=120)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_every_call_takes_the_same_algorithm_on_every_rank(comm, hvd, uneven, dtype):
    for sizes in SIZES[comm.size]:
        check(comm, uneven(sizes), hvd, dtype)
