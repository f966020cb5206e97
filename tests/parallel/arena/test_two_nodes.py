"""The arena on several nodes: ranks are told that only pairs of them share memory, or none."""

from __future__ import annotations

import resource

import pytest

from hvd_ext.allreduce.algorithms import ALGORITHMS
from hvd_ext.shm.regions import WindowError
from tests.support.arena.pretended_nodes import make_arena, pretend, reduce_and_check


def check_shards_go_between_nodes(comm, ranks_per_node, algorithm):
    topology = pretend(comm, ranks_per_node)
    arena = make_arena(topology, algorithm, timeout_s=60)
    for seed in range(3):
        reduce_and_check(arena, topology, seed)
    arena.close()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_shards_go_between_nodes_of_two_ranks(comm, algorithm):
    check_shards_go_between_nodes(comm, 2, algorithm)


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_shards_go_between_nodes_of_one_rank(comm, algorithm):
    check_shards_go_between_nodes(comm, 1, algorithm)


@pytest.mark.ranks(4)
def test_a_node_without_shared_memory_is_refused_by_all(comm):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if comm.rank >= 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(WindowError, match="on node1: "):
            make_arena(pretend(comm, 2), "native", timeout_s=60)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("ranks_per_node", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_rank_missing_on_another_node_is_named(launch, ranks_per_node):
    done = launch(4, ["tests/programs/arena/missing_on_a_node.py", ranks_per_node], timeout=60)
    assert done.returncode == 75, done.stdout
    assert "rank 3 (node" in done.stdout
    for rank in range(3):
        assert f"rank {rank} (node" not in done.stdout
