"""Every algorithm x operation x dtype x awkward count, against numpy; and odd numbers."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_ext.allreduce.algorithms import ALGORITHMS
from hvd_ext.allreduce.algorithms.half import narrow, widen
from hvd_ext.allreduce.operations import OPERATIONS
from hvd_ext.allreduce.prepare import prepare
from hvd_ext.dtypes import DTYPES
from hvd_ext.errors import UsageError
from tests.ranks.asserts import assert_same_bits

# 3, 5 and 7 fold into a power of two; more ranks than cores take shorter messages.
LONGEST = {6: 257, 7: 257, 8: 33}
IN_LONG = [pytest.param(size, marks=pytest.mark.long) for size in (1, 2, 5, *LONGEST)]
pytestmark = pytest.mark.ranks(3, 4, *IN_LONG)
by_all = pytest.mark.parametrize("name", sorted(ALGORITHMS))
# The MPI library promises no order.
by_ours = pytest.mark.parametrize("name", sorted({*ALGORITHMS} - {"native"}))
for_all = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=list(OPERATIONS))


def longest(comm):
    """The most elements of a message."""
    return LONGEST.get(comm.size, 10_007)


def bits_of(values, dtype):
    """Whole numbers of at most 8 bits in `dtype`; bfloat16 as its bits."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    bits = np.empty(len(values), np.uint16)
    narrow(values.astype(np.float32), bits)
    return bits


def numbers_of(bits, dtype):
    if dtype != "bfloat16":
        return bits.astype(np.float64)
    wide = np.empty(len(bits), np.float32)
    widen(bits, wide)
    return wide.astype(np.float64)


def check_whole_numbers(comm, name, operation, dtype, count):
    """Numbers so small that no order of combining rounds (or overflows, for 8 ranks)."""
    product = operation.name == "product"
    parts = [
        (np.arange(count) * (other + 3) % (2 if product else 5) + 1).astype(np.float64)
        for other in range(comm.size)
    ]
    if operation.name == "average":
        parts = [part * comm.size for part in parts]
    buffer = bits_of(parts[comm.rank], dtype)
    prepare(name, comm, buffer, operation, dtype)()
    expected = parts[0].copy()
    for part in parts[1:]:
        operation.combine(expected, part, out=expected)
    if operation.name == "average":
        expected /= comm.size
    if "int8" in dtype:  # wraps, as MPI's does
        expected = expected.astype(np.int64).astype(dtype)
    expected = numbers_of(bits_of(expected, dtype), dtype)
    assert np.array_equal(numbers_of(buffer, dtype), expected), (operation, dtype, count)


@by_all
@for_all
def test_whole_numbers_are_exact(comm, name, operation):
    size, most = comm.size, longest(comm)
    counts = {0, 1, 2, 3, size - 1, size, size + 1, 255, 256, 257, most}
    for dtype in DTYPES.values():
        if operation.name == "average" and dtype.dtype_class == "integer":
            with pytest.raises(UsageError):
                prepare(name, comm, np.zeros(3, dtype.name), operation)
            continue
        for count in sorted(count for count in counts if count <= most):
            check_whole_numbers(comm, name, operation, dtype.name, count)


@by_all
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_the_error_is_that_of_the_dtype(comm, name, dtype):
    mine = np.random.default_rng(comm.rank).standard_normal(min(longest(comm), 5001))
    buffer = bits_of(mine, dtype)
    exact = np.sum(comm.allgather(numbers_of(buffer, dtype)), axis=0)
    prepare(name, comm, buffer, OPERATIONS["sum"], dtype)()
    assert_same_bits(comm, buffer)
    # Half of a last place once for 16 bits, and the float32 sums of the way there.
    unit = {"float64": 2**-53, "float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8}[dtype]
    wide_unit = 2**-53 if dtype == "float64" else 2**-24
    limit = unit * np.abs(exact) + 8 * comm.size * wide_unit
    assert (np.abs(numbers_of(buffer, dtype) - exact) <= limit).all()


@by_ours
@for_all
def test_ranks_agree_on_odd_numbers(comm, name, operation):
    """NaNs that differ, zeros of both signs, infinities."""
    odd = np.array([0x7FC00001, 0xFFC00002, 0x7F800000, 0xFF800000, 0, 0x80000000], np.uint32)
    values = np.resize(np.roll(odd, comm.rank), 1001)
    values += (np.arange(1001) % 6 < 2) * np.uint32(comm.rank)
    buffer = values.view(np.float32)
    prepare(name, comm, buffer, operation)()
    assert_same_bits(comm, buffer)
