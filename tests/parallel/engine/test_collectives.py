"""Every collective, on one node and on several, alike or not, as one process has it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from hvd_ext.engine.one_node import OneNode
from hvd_ext.engine.several_nodes import SeveralNodes
from hvd_ext.shm.block import Block
from tests.ranks.asserts import parallel_assert
from tests.support.arena.pretended_nodes import pretend_nodes

IN_LONG = [pytest.param(size, marks=pytest.mark.long) for size in (1, 2, 3)]
pytestmark = pytest.mark.ranks(4, *IN_LONG)
# By the number of ranks: nodes of 1, of 2 + 1, of 3 + 1, and ranks that are not in order. Ranks of
# one node, which here cannot share memory, are a node each.
LAYOUTS = {
    1: ["0"],
    2: ["01", "00"],
    3: ["001", "010"],
    4: ["0011", "0101", "0001", "0111"],
}
# Empty, short, one piece, and several that do not end with a whole one.
COUNTS = [0, 1, 7, 5_001, 70_001, 900_001]
DTYPES = ["float32", "float16", "int64", "uint8"]


@pytest.fixture(scope="module")
def groups():
    """A group of each layout, made once."""
    from mpi4py import MPI

    topologies = [
        pretend_nodes(MPI.COMM_WORLD, [int(mark) for mark in layout])
        for layout in LAYOUTS[MPI.COMM_WORLD.size]
    ]
    of_nodes = [(SeveralNodes, topology) for topology in topologies]
    topologies.append(pretend_nodes(MPI.COMM_WORLD, [0] * MPI.COMM_WORLD.size))
    made = [
        kind(topology, 120.0, lambda *_: "another collective", "the test's limit")
        for kind, topology in [*of_nodes, (OneNode, topologies[-1])]
    ]
    yield made
    for group, topology in zip(made, topologies, strict=True):
        group.close(True)
        topology.close()


def numbers(rank, count, dtype="uint8"):
    """Whole numbers of which eight add up without rounding, others on each rank."""
    return ((np.arange(count) * 7 + 3 * rank) % 11).astype(dtype)


def every(group, count, dtype="uint8"):
    return [numbers(rank, count, dtype) for rank in range(group.size)]


def same(comm, found, expected, what):
    parallel_assert(comm, np.array_equal(found, expected), f"{what} is wrong")


@pytest.mark.parametrize("operation", ["sum", "min", "max", "product"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_reduce(comm, groups, dtype, operation):
    combine = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}
    for group, count in product(groups, COUNTS):
        array = numbers(group.rank, count, dtype)
        group.all_reduce(Block.of(array), dtype, operation, 1.0)
        expected = combine[operation].reduce(every(group, count, dtype), dtype=dtype)
        same(comm, array, expected, f"{operation} of {count}")


def test_an_average_is_the_sum_by_the_number_of_ranks(comm, groups):
    for group, count in product(groups, COUNTS):
        array = numbers(group.rank, count, "float32") * group.size
        group.all_reduce(Block.of(array), "float32", "sum", 1 / group.size)
        expected = np.sum(every(group, count, "float32"), axis=0)
        close = np.allclose(array, expected, rtol=1e-6)
        parallel_assert(comm, close, f"the average of {count} is wrong")


@pytest.mark.parametrize("dtype", DTYPES)
def test_reduce_scatter(comm, groups, dtype):
    for group, count in product(groups, COUNTS):
        own = numbers(group.rank, count * group.size, dtype)
        out = np.zeros(count, dtype)
        group.reduce_scatter(Block.of(out), Block.of(own), dtype, 1.0, "sum")
        summed = np.sum(every(group, count * group.size, dtype), axis=0, dtype=dtype)
        same(comm, out, summed.reshape(group.size, count)[group.rank], f"the row of {count}")


def test_all_gather(comm, groups):
    for group, count in product(groups, COUNTS):
        out = np.zeros(count * group.size, np.uint8)
        group.all_gather(Block.of(out), Block.of(numbers(group.rank, count)))
        same(comm, out, np.concatenate(every(group, count)), f"what was gathered of {count}")


def test_broadcast_from_every_rank(comm, groups):
    # The longest passes from node to node.
    for group, count in product(groups, (*COUNTS, 9 << 20)):
        for root in range(group.size):
            array = numbers(group.rank, count)
            group.broadcast(Block.of(array), root)
            same(comm, array, numbers(root, count), f"rank {root}'s {count}")


def test_all_to_all_of_uneven_parts(comm, groups):
    ranks = range(comm.size)
    for group, count in product(groups, (0, 1, 3, 50_000)):
        # Some ranks give some others nothing.
        given = [[(giver + 2 * taker) % 3 * count for taker in ranks] for giver in ranks]
        owns = [np.full(n, 16 * group.rank + t, np.uint8) for t, n in enumerate(given[group.rank])]
        taken = [given[giver][group.rank] for giver in ranks]
        outs = [np.zeros(n, np.uint8) for n in taken]
        group.all_to_all([*map(Block.of, outs)], [*map(Block.of, owns)])
        expected = [np.full(n, 16 * g + group.rank, np.uint8) for g, n in enumerate(taken)]
        same(comm, np.concatenate(outs), np.concatenate(expected), f"others' {count}")


def test_mixed_collectives_do_not_meet(comm, groups):
    """Memory is used alternately by all of them: a rank that runs ahead spoils nothing."""
    for group, turn in product(groups, range(12)):
        count = [3, 70_001, 900_001, 20_000][turn % 4]
        array = numbers(group.rank + turn, count, "int64")
        group.all_reduce(Block.of(array), "int64", "max", 1.0)
        expected = np.max([numbers(r + turn, count, "int64") for r in range(group.size)], axis=0)
        out = np.zeros(count * group.size, np.uint8)
        group.all_gather(Block.of(out), Block.of(numbers(group.rank, count)))
        group.broadcast(Block.of(out), turn % group.size)
        group.barrier()
        same(comm, array, expected, f"turn {turn}'s maximum")
        same(comm, out, np.concatenate(every(group, count)), f"turn {turn}'s rows")
