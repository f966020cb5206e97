"""What can be said of the algorithms without ranks: their trees, and 16-bit rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_ext.allreduce.algorithms import ALGORITHMS, double_tree, tree
from hvd_ext.allreduce.algorithms.folding import largest_power_of_two
from hvd_ext.allreduce.algorithms.half import narrow, widen
from hvd_ext.allreduce.algorithms.segments import scratch
from hvd_ext.allreduce.operations import OPERATIONS
from hvd_ext.allreduce.prepare import prepare
from hvd_ext.errors import UsageError

SIZES = st.integers(1, 300)


def depths(families):
    """How far each rank is from the root; asserts that parents and children agree."""
    roots = [rank for rank, (parent, _) in enumerate(families) if parent is None]
    assert len(roots) == 1
    found = {roots[0]: 0}
    todo = roots
    for rank in todo:
        for child in families[rank][1]:
            assert families[child][0] == rank
            found[child] = found[rank] + 1
            todo.append(child)
    assert sorted(found) == list(range(len(families)))
    return found


@given(SIZES)
def test_the_binomial_tree_reaches_every_rank(size):
    families = [tree.family(rank, size) for rank in range(size)]
    assert max(depths(families).values()) <= (size - 1).bit_length()


@given(SIZES)
def test_two_binary_trees_share_no_inner_rank(size):
    inner = []
    for number in range(2):
        families = [double_tree.family(rank, size, number) for rank in range(size)]
        assert max(len(children) for _, children in families) <= 2
        assert max(depths(families).values()) <= (size - 1).bit_length()
        inner.append({rank for rank, (_, children) in enumerate(families) if children})
    # With an odd number of ranks there is one leaf too few.
    assert len(inner[0] & inner[1]) <= size % 2


@given(st.integers(1, 10**6))
def test_the_core_is_the_largest_power_of_two(size):
    core = largest_power_of_two(size)
    assert core & (core - 1) == 0
    assert core <= size < 2 * core


def test_every_bfloat16_survives_and_rounding_is_torchs():
    bits = np.arange(2**16, dtype=np.uint16)
    wide, back = np.empty(2**16, np.float32), np.empty(2**16, np.uint16)
    widen(bits, wide)
    narrow(wide, back)
    nan = np.isnan(wide)
    assert np.array_equal(bits[~nan], back[~nan])
    widen(back[nan], wide[nan])
    assert np.isnan(wide[nan]).all()

    generator = np.random.default_rng(0)
    patterns = generator.integers(0, 2**32, 10**6, dtype=np.uint32)
    # Halfway between two bfloat16, where it goes to the even one; and next to that.
    patterns[:1000] = patterns[:1000] >> 16 << 16 | 0x8000
    patterns[1000:2000] = patterns[:1000] + 1
    patterns[2000:3000] = patterns[:1000] - 1
    patterns[3000:3004] = 0x7F7FFFFF, 0xFF7FFFFF, 0x7FFFFFFF, 0xFFFFFFFF
    wide = patterns.view(np.float32)
    back = np.empty(10**6, np.uint16)
    narrow(wide, back)
    expected = torch.from_numpy(wide).bfloat16().view(torch.uint16).numpy()
    nan = np.isnan(wide)
    assert np.array_equal(back[~nan], expected[~nan])
    assert ((back[nan] & 0x7F80) == 0x7F80).all()
    assert ((back[nan] & 0x7F) != 0).all()


def test_scratch_is_kept_and_grows():
    first = scratch(10, np.float32, "a test")
    assert np.shares_memory(first, scratch(5, np.float32, "a test"))
    assert not np.shares_memory(first, scratch(10, np.float32, "another"))
    assert len(scratch(20, np.float32, "a test")) == 20


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("buffer", "operation", "dtype", "says"),
    [
        (np.zeros(4, np.int64), "average", None, "average of int64"),
        (np.zeros(4, np.uint8), "average", None, "average of uint8"),
        (np.zeros(4, np.uint16), "sum", None, "dtype 'uint16'"),
        (np.zeros(4, np.float32), "sum", "bfloat16", "'bfloat16' in an array of float32"),
        (np.zeros(4, np.complex64), "sum", None, "'complex64'"),
        (np.zeros((2, 2), np.float32), "sum", None, r"shape \(2, 2\)"),
        (np.zeros(4, np.float32)[::2], "sum", None, "strides"),
    ],
)
def test_what_is_not_served_is_refused_before_any_communication(
    algorithm, buffer, operation, dtype, says
):
    with pytest.raises(UsageError, match=says):
        prepare(algorithm, None, buffer, OPERATIONS[operation], dtype)


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(UsageError, match="'rong'"):
        prepare("rong", None, np.zeros(1), OPERATIONS["sum"])
