"""The cost formulas of the algorithms, against counted messages and bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_ext.arithmetic.allreduce_work import FORMULAS, Work, work
from hvd_ext.errors import UsageError


@pytest.mark.parametrize("algorithm", FORMULAS)
def test_one_rank_does_nothing_and_two_send_all(algorithm):
    assert work(algorithm, 1, 800) == Work(0, 0, 0)
    assert work(algorithm, 2, 800).sent_bytes >= 800


@pytest.mark.parametrize(
    ("algorithm", "size", "expected"),
    [
        ("ring", 4, Work(6, 1200, 600)),
        ("recursive_doubling", 4, Work(2, 1600, 1600)),
        ("recursive_doubling", 5, Work(4, 3200, 2400)),
        ("rabenseifner", 4, Work(4, 1200, 600)),
        ("rabenseifner", 5, Work(6, 2800, 1400)),
        ("tree", 5, Work(6, 4800, 2400)),
        ("double_tree", 2, Work(2, 1600, 800)),
    ],
)
def test_formulas_for_800_bytes(algorithm, size, expected):
    assert work(algorithm, size, 800) == expected


@given(st.sampled_from(sorted(FORMULAS)), st.integers(1, 5000), st.integers(0, 2**40))
def test_no_algorithm_sends_less_than_it_must(algorithm, size, message_bytes):
    done = work(algorithm, size, message_bytes)
    assert done.reduced_bytes >= (1 - 1 / size) * message_bytes * (1 - 1e-9) - 1e-9 or (
        # Folding counts what the partner does at the same time once.
        size & (size - 1)
    )
    assert done.messages >= (size - 1).bit_length()
    if size == 1:
        assert done == Work(0, 0, 0)


def test_work_that_cannot_be_computed_is_refused():
    with pytest.raises(UsageError, match="'native' has no formula"):
        work("native", 2, 4)
    with pytest.raises(UsageError, match="0 ranks"):
        work("ring", 0, 4)
