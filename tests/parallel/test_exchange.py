"""The allreduce algorithms and the arena, at 1 to 4 ranks."""

from __future__ import annotations

import pytest

from hvd_ext.allreduce.algorithms import ALGORITHMS


@pytest.mark.parametrize("np", [1, 2, 3, 4])
@pytest.mark.parametrize("program", ["planned_calls", "started_calls", "allreduce_algorithms"])
def test_sums_are_exact_and_equal_on_all_ranks(launch, np, program):
    done = launch(np, [f"tests/programs/{program}.py"])
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("ok ") == np


def test_five_ranks_fold_into_a_power_of_two(launch):
    done = launch(5, ["tests/programs/allreduce_algorithms.py"])
    assert done.stdout.count("ok ") == 5, done.stdout


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
@pytest.mark.parametrize(("np", "ranks_per_node"), [(4, 2), (3, 1), (4, 1)])
def test_shares_go_between_nodes(launch, np, ranks_per_node, algorithm):
    done = launch(np, ["tests/programs/two_nodes.py", algorithm, ranks_per_node])
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("ok ") == np


@pytest.mark.parametrize("ranks_per_node", [1, 2])
def test_a_rank_missing_on_another_node_is_named(launch, ranks_per_node):
    arguments = ["tests/programs/two_nodes.py", "native", ranks_per_node, "missing"]
    done = launch(4, arguments, timeout=60)
    assert done.returncode == 75, done.stdout
    assert "rank 3 (node" in done.stdout
    for rank in range(3):
        assert f"rank {rank} (node" not in done.stdout


def test_a_node_without_shared_memory_is_refused_by_all(launch):
    done = launch(4, ["tests/programs/two_nodes.py", "native", 2, "no-memory"], timeout=60)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("refused ") == 4, done.stdout


def test_communicators_are_lent_again_and_freed_together(launch):
    done = launch(4, ["tests/programs/communicators.py"])
    assert done.stdout.count("ok ") == 4, done.stdout
