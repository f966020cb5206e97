"""The allreduce algorithms and the arena, at 1 to 4 ranks."""

from __future__ import annotations

import pytest

from hvd_ext.allreduce.registry import ALGORITHMS


@pytest.mark.parametrize("np", [1, 2, 3, 4])
@pytest.mark.parametrize("program", ["arena_sums", "allreduce_algorithms"])
def test_sums_are_exact_and_equal_on_all_ranks(launch, np, program):
    done = launch(np, [f"tests/programs/{program}.py"])
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("ok ") == np


def test_every_16_bit_pattern(launch):
    done = launch(2, ["tests/programs/half_extremes.py"])
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("ok ") == 2


def test_five_ranks_fold_into_a_power_of_two(launch):
    assert "recursive_doubling" in ALGORITHMS
    done = launch(5, ["tests/programs/allreduce_algorithms.py"])
    assert done.stdout.count("ok ") == 5, done.stdout
