"""The tree's sum is the same whoever adds which part, and takes few partial sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_ext.arithmetic.summation_tree import merges, slots_of_each_rank, tree_sum
from hvd_ext.errors import UsageError

POWERS = st.integers(0, 3).map(lambda power: 1 << power)


def by_halves(terms: np.ndarray) -> np.ndarray:
    """The tree as its definition has it: (slots, ...) in float32."""
    while len(terms) > 1:
        terms = terms[0::2] + terms[1::2]
    return terms[0]


def by_counter(terms: np.ndarray) -> np.ndarray:
    return tree_sum(list(terms), lambda a, b: a + b)


def numbers(seed: int, slots: int, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of many magnitudes: nearly every other order rounds otherwise."""
    rng = np.random.default_rng(seed)
    powers = rng.integers(-12, 12, (slots, *shape))
    return np.ldexp(rng.standard_normal((slots, *shape)), powers).astype(np.float32)


SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@given(st.integers(0, 2**32), POWERS, POWERS, POWERS, SHAPES)
def test_ranks_and_nodes_change_no_bit(seed, slots_per_rank, ranks_per_node, nodes, shape):
    terms = numbers(seed, nodes * ranks_per_node * slots_per_rank, shape)
    expected = by_halves(terms)
    of_ranks = [by_counter(part) for part in np.split(terms, nodes * ranks_per_node)]
    of_nodes = [
        by_counter(np.stack(of_ranks[first : first + ranks_per_node]))
        for first in range(0, len(of_ranks), ranks_per_node)
    ]
    assert by_counter(np.stack(of_nodes)).tobytes() == expected.tobytes()


def test_the_order_of_the_ranks_is_another_sum():
    """Otherwise the tests above would prove nothing."""
    terms = numbers(1, 8, (1000,))
    in_rank_order = terms[0]
    for term in terms[1:]:
        in_rank_order = in_rank_order + term
    assert (in_rank_order != by_halves(terms)).mean() > 0.1


@given(st.integers(0, 8))
def test_partial_sums_are_few(power):
    held, most = set(), 0
    for term in range(1 << power):
        held.add(term)
        most = max(most, len(held))
        for left, right in merges(term):
            assert left in held
            held.remove(right)
    assert held == {0}
    assert most == power + 1


@given(st.integers(-3, 5000), st.integers(1, 200))
def test_what_does_not_fit_is_refused_with_the_numbers_that_would(slots, size):
    try:
        assert slots_of_each_rank(slots, size) * size == slots
    except UsageError as error:
        line = str(error)
        assert f"reproducible={slots} on {size} rank" in line
        offered = [int(word) for word in line.split(": ")[-1].split() if word.isdigit()]
        assert len(offered) == 2
        of_ranks = "start" in line
        for number in offered:
            slots_of_each_rank(*((1 << 20, number) if of_ranks else (number, size)))
    else:
        assert slots & (slots - 1) == size & (size - 1) == 0


@pytest.mark.parametrize(
    ("slots", "size", "line"),
    [
        (6, 2, "give 4 or 8"),
        (2, 4, "give 4 or 8"),
        (0, 1, "give 1 or 2"),
        (8, 3, "start 2 or 4 ranks"),
    ],
)
def test_refusals(slots, size, line):
    with pytest.raises(UsageError, match=line):
        slots_of_each_rank(slots, size)
