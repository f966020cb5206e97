"""Scripts' patterns: the bits of the plain optimizer, or one clear line on every rank."""

from __future__ import annotations

import pytest

from hvd_ext.torch.sharded import shards
from tests.ranks.asserts import parallel_assert
from tests.support.optimizer.sharding_patterns import (
    PATTERNS,
    clipping,
    differences,
    gradients,
    models,
    optimizers,
    parameters,
    states,
    weights,
)

assert all(
    (clipping, gradients, models, optimizers, parameters, states, weights)
)  # each adds its patterns
# Every sixteenth on two ranks, where all others follow in the long tests.
ON_TWO = [
    pytest.param(name, marks=[pytest.mark.long] * (number % 16 != 8))
    for number, name in enumerate(PATTERNS)
]
# Shards of three ranks are the unevenest, and sums of three the least exact.
ON_THREE_TOO = [
    pytest.param(name, marks=[pytest.mark.long] * (number % 32 != 0))
    for number, name in enumerate(PATTERNS)
    if number % 4 == 0
]


@pytest.fixture(autouse=True)
def several_parts_of_a_parameter(monkeypatch):
    monkeypatch.setattr(shards, "_PART_BYTES", 1 << 8)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", ON_TWO)
def test_a_script_gets_the_bits_of_the_plain_optimizer_or_one_line(comm, hvd, name):
    found = differences(name)
    parallel_assert(comm, not found, found)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("name", ON_THREE_TOO)
def test_a_script_on_three_ranks(comm, hvd, name):
    found = differences(name)
    parallel_assert(comm, not found, found)


def test_there_are_as_many_patterns_as_scripts_have():
    assert len(PATTERNS) >= 111
