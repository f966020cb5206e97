"""The order of samples: each once an epoch, and a run goes on anywhere, on any ranks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_ext.data import Order, fingerprint, share
from hvd_ext.errors import UsageError

SAMPLES = st.integers(1, 40)
RANKS = st.integers(1, 5)
LOCAL = st.integers(1, 7)
SEEDS = st.integers(0, 2**40)


def taken(order: Order, position: int, ranks: int, local: int, steps: int) -> list[int]:
    """The samples of some steps, in the order of positions, each rank asked for its own."""
    found: list[int] = []
    for _ in range(steps):
        for rank in range(ranks):
            found += [order.sample(p) for p in share(position, local, rank)]
        position += ranks * local
    return found


@given(SAMPLES, RANKS, LOCAL, SEEDS)
def test_an_epoch_has_each_sample_once_whatever_the_batch(
    samples: int, ranks: int, local: int, seed: int
) -> None:
    order = Order(samples, seed)
    steps = -(-3 * samples // (ranks * local))
    row = taken(order, 0, ranks, local, steps)
    for epoch in range(3):
        assert Counter(row[epoch * samples : (epoch + 1) * samples]) == Counter(range(samples))


@given(SAMPLES, RANKS, LOCAL, RANKS, LOCAL, st.integers(0, 9), SEEDS)
def test_a_run_goes_on_at_another_number_of_ranks_and_another_batch(
    samples: int, ranks: int, local: int, ranks_2: int, local_2: int, stopped: int, seed: int
) -> None:
    order = Order(samples, seed, data="a")
    before = taken(order, 0, ranks, local, stopped)
    state = order.state(stopped * ranks * local)
    again = Order(samples, seed, data="a")
    after = taken(again, again.resume(state), ranks_2, local_2, 9)
    whole = [order.sample(p) for p in range(len(before) + len(after))]
    assert before + after == whole


@given(SAMPLES, st.integers(1, 90), st.integers(0, 200))
def test_the_steps_of_an_epoch_end_with_its_last_sample(
    samples: int, batch: int, position: int
) -> None:
    steps = Order(samples, 0).steps_left(position, batch)
    end = (position // samples + 1) * samples
    assert position + (steps - 1) * batch < end <= position + steps * batch


def test_epochs_and_seeds_have_orders_and_random_numbers_of_their_own() -> None:
    one, other = Order(50, seed=1), Order(50, seed=2)
    rows = [[o.sample(first + k) for k in range(50)] for o in (one, other) for first in (0, 50)]
    assert len({tuple(row) for row in rows}) == 4
    drawn = {o.rng(p).integers(2**62) for o in (one, other) for p in range(100)}
    assert len(drawn) == 200
    assert one.rng(7).integers(2**62) == Order(50, seed=1).rng(7).integers(2**62)
    assert [Order(3, 0, shuffle=False).sample(p) for p in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_another_seed_other_data_and_no_data_are_refused() -> None:
    state = Order(5, seed=1, data=fingerprint("a")).state(3)
    assert state["position"] == 3
    with pytest.raises(UsageError, match="had the seed 1, now 2: give the seed"):
        Order(5, seed=2, data=fingerprint("a")).resume(state)
    with pytest.raises(UsageError, match="give the data it was started with"):
        Order(5, seed=1, data=fingerprint("b")).resume(state)
    with pytest.raises(UsageError, match="0 samples"):
        Order(0, seed=1)
