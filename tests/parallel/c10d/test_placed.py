"""FSDP's memory that ranks read from each other: the same results whoever has a place."""

from __future__ import annotations

import numpy as np
import pytest
import torch.distributed as dist

from hvd_ext.c10d.collectives import SETTING, describe
from hvd_ext.c10d.ranks import topology_of
from hvd_ext.engine.placed import Placed
from hvd_ext.shm.block import Block
from hvd_ext.shm.regions import WindowError
from hvd_ext.shm.window import NodeWindow
from tests.ranks.asserts import parallel_assert

pytestmark = pytest.mark.usefixtures("gloo")
COUNT = 1003


def gather(placed, seed, *, lend=True):
    """Whether an all-gather gave what every rank has, and the memory that it was lent."""
    every = [np.random.default_rng([seed, rank]).bytes(COUNT) for rank in range(placed.size)]
    lent = placed.take(placed.size * COUNT) if lend else None
    out = np.empty(placed.size * COUNT, np.uint8) if lent is None else lent
    own = out[placed.rank * COUNT :][:COUNT]
    own[:] = np.frombuffer(every[placed.rank], np.uint8)
    placed.all_gather(Block.of(out), Block.of(own))
    return out.tobytes() == b"".join(every), lent


def reduce(placed, seed, dtype="float32"):
    """Whether a reduce-scatter gave this rank's row of the sum, and whether it was lent memory."""
    every = [
        np.random.default_rng([seed, rank]).integers(-99, 99, placed.size * COUNT).astype(dtype)
        for rank in range(placed.size)
    ]
    lent = placed.take(every[0].nbytes)
    own = np.empty_like(every[0]) if lent is None else lent.view(dtype)
    own[:] = every[placed.rank]
    out = np.empty(COUNT, dtype)
    placed.reduce_scatter(Block.of(out), Block.of(own), dtype, 0.5)
    return np.array_equal(out, sum(every)[placed.rank * COUNT :][:COUNT] * 0.5), lent is not None


@pytest.mark.ranks(1, 2, 3, 4)
def test_memory_is_lent_from_the_second_collective_of_a_length_on(comm):
    placed = Placed(topology_of(dist.group.WORLD), 60, describe, SETTING)
    lent = []
    for seed in range(9):
        right, memory = gather(placed, seed)
        parallel_assert(comm, right, f"gathered {seed}")
        lent.append(memory is not None)
        del memory
        right, was_lent = reduce(placed, seed)
        parallel_assert(comm, right, f"reduced {seed}")
        lent.append(was_lent)
    # The first reduction is longer than the first gathering.
    parallel_assert(comm, lent == [False, False, *[True] * 16], lent)


@pytest.mark.ranks(2, 3)
def test_a_rank_that_has_no_place_does_not_disturb_the_others(comm):
    placed = Placed(topology_of(dist.group.WORLD), 60, describe, SETTING)
    for seed in range(12):
        late = seed % (placed.size + 1) == placed.rank
        right, _ = gather(placed, seed, lend=not late)
        parallel_assert(comm, right, f"gathered {seed}")
        if late:
            placed.take(1)  # ranks' turns differ from here on


@pytest.mark.ranks(2)
def test_memory_in_use_is_not_lent_again(comm):
    placed = Placed(topology_of(dist.group.WORLD), 60, describe, SETTING)
    gather(placed, 0)
    kept = [gather(placed, seed)[1] for seed in (1, 2)]
    copies = [memory.copy() for memory in kept]
    right, lent = gather(placed, 3)
    parallel_assert(comm, right and lent is None, "lent twice")
    parallel_assert(comm, all(map(np.array_equal, kept, copies)), "overwritten")
    del kept[0], lent
    right, lent = gather(placed, 4)  # the turn of the other one, which is kept
    parallel_assert(comm, right and lent is None, "lent twice")
    right, lent = gather(placed, 5)
    parallel_assert(comm, right and lent is not None, "not lent again")


@pytest.mark.ranks(2)
def test_where_there_is_no_memory_tensors_are_copied(comm, monkeypatch, caplog):
    placed = Placed(topology_of(dist.group.WORLD), 60, describe, SETTING)

    def refuse(*_):
        raise WindowError("none is left")

    monkeypatch.setattr(NodeWindow, "__init__", refuse)
    for seed in range(3):
        right, lent = gather(placed, seed)
        parallel_assert(comm, right and lent is None, "lent")
    lines = [r.message for r in caplog.records if "none is left" in r.message]
    parallel_assert(comm, len(lines) == (comm.rank == 0), lines)
