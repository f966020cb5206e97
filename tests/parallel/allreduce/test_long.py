"""Messages of several segments and blocks, by every algorithm, against exact sums."""

from __future__ import annotations

import os

import numpy as np
import pytest

from hvd_ext.allreduce.algorithms import ALGORITHMS
from hvd_ext.allreduce.operations import OPERATIONS
from hvd_ext.allreduce.persistent import PersistentAllreduce
from hvd_ext.allreduce.prepare import prepare
from hvd_ext.arithmetic.allreduce_work import SEGMENT_BYTES

SEGMENT = SEGMENT_BYTES // 4  # elements of float32
needs_memory = pytest.mark.skipif(
    os.environ.get("HVD_EXT_TEST_HUGE") != "1",
    reason="takes 8 GiB and minutes: HVD_EXT_TEST_HUGE=1",
)
HUGE = 2**31 + 2**20 + 1


def check(comm, name, count, dtype):
    buffer = np.empty(count, dtype)
    check_call(comm, buffer, prepare(name, comm, buffer, OPERATIONS["sum"]))


def check_call(comm, buffer, call):
    """Element i is i % 7 + the rank; in blocks, so that a huge message needs no second copy."""
    count, dtype = len(buffer), buffer.dtype.type
    length = min(count, 7_000_000)
    blocks = [slice(begin, begin + length) for begin in range(0, count, length)]
    pattern = (np.arange(length) % 7).astype(dtype)
    for block in blocks:
        buffer[block] = pattern[: len(buffer[block])] + comm.rank
    call()
    for block in blocks:
        expected = pattern[: len(buffer[block])] * dtype(comm.size) + dtype(sum(range(comm.size)))
        assert np.array_equal(buffer[block], expected), (count, dtype, block)


@pytest.mark.ranks(3, *(pytest.param(size, marks=pytest.mark.long) for size in (2, 4, 5)))
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_messages_of_several_segments(comm, name):
    for count in (SEGMENT, SEGMENT + 1, 2 * SEGMENT * comm.size - 1, 5 * SEGMENT + 3):
        check(comm, name, count, np.float32)
    check(comm, name, SEGMENT_BYTES + 1, np.int8)
    check(comm, name, 2**21 + 1, np.float16)  # one more than a block of float32
    check(comm, name, 2 * SEGMENT + 1, np.float32)
    # Twice as many bytes as float32: the scratch has to grow.
    check(comm, name, 2 * SEGMENT + 1, np.float64)


@needs_memory
@pytest.mark.long
@pytest.mark.timeout(1000)
@pytest.mark.ranks(2, timeout_s=600)
@pytest.mark.parametrize(
    "name", ["native", "ring", "rabenseifner", "tree", "double_tree", "recursive_doubling"]
)
def test_more_bytes_than_an_int_counts(comm, name):
    """By every algorithm that is worth it at that length."""
    check(comm, name, HUGE, np.int8)


@needs_memory
@pytest.mark.long
@pytest.mark.timeout(1000)
@pytest.mark.ranks(2, timeout_s=600)
def test_more_bytes_than_an_int_counts_in_the_arena(comm, topology):
    planned = PersistentAllreduce.in_arena(topology, HUGE, "int8")
    check_call(comm, planned.buffer, planned)
