"""The allreduce algorithms and the arena, at 1 to 4 ranks."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("np", [1, 2, 3, 4])
@pytest.mark.parametrize("program", ["planned_calls", "started_calls"])
def test_sums_are_exact_and_equal_on_all_ranks(launch, np, program):
    done = launch(np, [f"tests/programs/{program}.py"])
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("ok ") == np


def test_communicators_are_lent_again_and_freed_together(launch):
    done = launch(4, ["tests/programs/communicators.py"])
    assert done.stdout.count("ok ") == 4, done.stdout
