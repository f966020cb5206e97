"""Who keeps which sample, against what a run of the whole row would do, step by step."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hvd_ext.data import Order
from hvd_ext.data.store.owners import NO_OWNER, Owners

SMALL = st.integers(1, 9)


@given(
    samples=st.integers(1, 30),
    ranks=st.integers(1, 5),
    batch=SMALL,
    begin=st.integers(0, 70),
    scarce=st.booleans(),
    seed=st.integers(0, 9),
)
def test_each_sample_is_read_once_and_is_there_when_it_is_sent(
    samples: int, ranks: int, batch: int, begin: int, scarce: bool, seed: int
) -> None:
    order = Order(samples, seed)
    lengths = np.random.default_rng(seed).integers(1, 300, samples)
    budgets = np.full(ranks, 700 if scarce else 10**9)
    owners = Owners(order, begin, batch, lengths, budgets)
    kept: dict[int, int] = {}
    for first in range(begin, begin + 3 * samples, batch * ranks):
        step = owners.step(first)
        used = []
        sent = {entry for rank in range(ranks) for entry in step.sent(rank)}
        received = {entry for rank in range(ranks) for entry in step.received(rank)}
        assert sent == received
        for entry, position in enumerate(range(first, first + batch * ranks)):
            sample, user = order.sample(position), entry // batch
            assert (step.samples[entry], step.users[entry]) == (sample, user)
            used.append(sample)
            owner = owners.owner[sample]
            if owner == NO_OWNER:
                assert step.read[entry]
            elif sample in kept:
                assert not step.read[entry]
                assert kept[sample] == owner
                assert (entry in sent) == (owner != user)
            else:
                assert step.read[entry]
                assert owner == user
                kept[sample] = owner
    assert scarce or len(kept) == samples
    # Nothing overlaps, and no budget is exceeded.
    for rank in range(ranks):
        mine = sorted((int(owners.offsets[s]), int(lengths[s])) for s in kept if kept[s] == rank)
        ends = [0, *(begin + length for begin, length in mine)]
        assert all(begin >= end for (begin, _), end in zip(mine, ends, strict=False))
        assert ends[-1] <= owners.rank_bytes[rank] <= budgets[rank]
        assert all(offset % 64 == 0 for offset, _ in mine)


def test_without_a_budget_for_all_the_first_used_are_kept() -> None:
    order = Order(10, 1)
    owners = Owners(order, 0, 2, np.full(10, 100), np.array([256, 0]))
    kept = np.flatnonzero(owners.owner != NO_OWNER)
    assert sorted(kept) == sorted(order.sample(p) for p in (0, 1))
    assert list(owners.rank_bytes) == [256, 0]
