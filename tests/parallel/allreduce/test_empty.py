"""Buffers that every rank of a node maps: reduced where they lie, and freed."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path

import numpy as np
import pytest
import torch

import hvd_ext.torch as hvd
from hvd_ext.allreduce import PersistentAllreduce, empty
from hvd_ext.dtypes import DTYPES
from hvd_ext.errors import UsageError
from tests.ranks.asserts import assert_same_bits
from tests.support.arena.pretended_nodes import pretend

IN_LONG = [pytest.param(size, marks=pytest.mark.long) for size in (1, 2, 4)]
pytestmark = pytest.mark.ranks(3, *IN_LONG)
COUNT = 70_001


def shared_bytes() -> int:
    """Memory of ranks that this process maps."""
    gc.collect()
    ranges = [
        line.split()[0].split("-")
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "memfd:hvd_ext" in line
    ]
    return sum(int(end, 16) - int(begin, 16) for begin, end in ranges)


def planned_in_place(topology, buffer, **named):
    """A plan that maps no more than ranks need to meet."""
    before = shared_bytes()
    planned = PersistentAllreduce(topology, buffer, **named)
    assert shared_bytes() - before == topology.node.size * mmap.PAGESIZE
    return planned


def check(world, planned, seed):
    """Sums of small whole numbers, which every order of adding gives alike."""
    values = (np.arange(planned.buffer.size) + seed) % 5
    planned.buffer[:] = values + world.rank
    planned()
    expected = values * world.size + sum(range(world.size))
    np.testing.assert_array_equal(planned.buffer, expected.astype(planned.buffer.dtype))
    assert_same_bits(world, planned.buffer)


@pytest.mark.parametrize("dtype", sorted(DTYPES.keys() - {"bfloat16"}))
def test_an_array_is_reduced_where_it_lies(topology, dtype):
    array = empty(topology, (7, COUNT // 7), dtype)
    assert (array.shape, array.dtype.name) == ((7, COUNT // 7), dtype)
    planned = planned_in_place(topology, array)
    assert planned.algorithm == "shared_memory"
    for seed in range(3):
        check(topology.world, planned, seed)
    assert np.shares_memory(planned.buffer, array)


def test_parts_of_one_array_are_planned_apart(topology):
    """Each with its own tickets, wherever it begins, and called in any order."""
    array = empty(topology, COUNT, "float32")
    whole, first, last = (
        planned_in_place(topology, part) for part in (array, array[: COUNT // 2], array[12345:])
    )
    for seed, planned in enumerate((first, last, whole, last, first, first)):
        check(topology.world, planned, seed)
    last.buffer[:] = 1
    last.start()
    last.wait()
    assert (last.buffer == topology.world.size).all()


def test_other_parts_on_other_ranks_are_reduced_as_the_callers_own(topology):
    world = topology.world
    array = empty(topology, COUNT, "float32")
    plain = np.empty(4000, np.float32)
    for mine in (array[world.rank :][:4000], plain if world.rank else array[:4000]):
        check(world, PersistentAllreduce(topology, mine), 1)


def test_the_shortest_and_none(topology):
    for count in (0, 1, 100, 128, 129):
        check(topology.world, PersistentAllreduce(topology, empty(topology, count)), 2)


def test_another_dtype_is_refused(topology):
    with pytest.raises(UsageError, match="'bool'"):
        empty(topology, 3, "bool")


def test_memory_is_freed_with_the_last_user(topology):
    def descriptors():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = shared_bytes(), descriptors()
    array = empty(topology, 1 << 20, "uint8")
    assert shared_bytes() - before[0] == topology.node.size << 20
    planned = PersistentAllreduce(topology, array[5:])
    del array
    check(topology.world, planned, 3)  # the plan keeps it
    del planned
    assert (shared_bytes(), descriptors()) == before
    assert not list(Path("/dev/shm").glob("*hvd_ext*"))


@pytest.mark.parametrize("ranks_per_node", [1, 2])
def test_on_several_nodes_it_is_any_array(comm, ranks_per_node):
    pretended = pretend(comm, ranks_per_node)
    if pretended.one_node:
        pytest.skip("one node")
    planned = PersistentAllreduce(pretended, empty(pretended, COUNT, "float64"))
    assert planned.algorithm != "shared_memory"
    check(comm, planned, 0)


@pytest.mark.usefixtures("hvd")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_a_tensor_is_reduced_where_it_lies(dtype):
    before = shared_bytes()
    tensor = hvd.empty((11, COUNT // 11), dtype)
    assert (tensor.shape, tensor.dtype) == ((11, COUNT // 11), dtype)
    mapped = shared_bytes()
    planned = hvd.plan_allreduce(tensor, hvd.Sum)
    assert shared_bytes() - mapped == hvd.size() * mmap.PAGESIZE
    for seed in range(3):
        tensor.fill_(seed + hvd.rank())
        planned()
        assert (tensor == seed * hvd.size() + sum(range(hvd.size()))).all()
    del tensor, planned
    assert shared_bytes() == before


@pytest.mark.usefixtures("hvd")
def test_a_tensor_of_another_dtype_is_refused():
    with pytest.raises(UsageError, match="'bool'"):
        hvd.empty(3, torch.bool)
