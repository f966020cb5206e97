"""Every algorithm x operation x dtype x awkward count, against numpy.

Argument: the most elements of a message (default 10007).
"""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI

from hvd_ext.allreduce.algorithms import ALGORITHMS
from hvd_ext.allreduce.half import narrow, widen
from hvd_ext.allreduce.operations import OPERATIONS
from hvd_ext.allreduce.prepare import prepare
from hvd_ext.dtypes import DTYPES
from hvd_ext.errors import UsageError

comm = MPI.COMM_WORLD
size, rank = comm.size, comm.rank
most = int(sys.argv[1]) if len(sys.argv) > 1 else 10_007
counts = [0, 1, 2, 3, size - 1, size, size + 1, 255, 256, 257, most]
counts = sorted({count for count in counts if count <= most})


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


def same_on_all_ranks(buffer):
    return len(set(comm.allgather(buffer.tobytes()))) == 1


def check_whole_numbers(name, operation, dtype, count):
    """Numbers so small that no order of combining rounds (or overflows, for 8 ranks)."""
    product = operation.name == "product"
    parts = [
        (np.arange(count) * (other + 3) % (2 if product else 5) + 1).astype(np.float64)
        for other in range(size)
    ]
    if operation.name == "average":
        parts = [part * size for part in parts]
    buffer = bits_of(parts[rank], dtype)
    prepare(name, comm, buffer, operation, dtype)()
    expected = parts[0].copy()
    for part in parts[1:]:
        operation.combine(expected, part, out=expected)
    if operation.name == "average":
        expected /= size
    if "int8" in dtype:  # wraps, as MPI's does
        expected = expected.astype(np.int64).astype(dtype)
    expected = numbers_of(bits_of(expected, dtype), dtype)
    assert np.array_equal(numbers_of(buffer, dtype), expected), (name, operation, dtype, count)


def check_rounding(name, dtype):
    """All ranks hold the same bits, and the error is that of the dtype."""
    mine = np.random.default_rng(rank).standard_normal(min(most, 5001))
    buffer = bits_of(mine, dtype)
    exact = np.sum(comm.allgather(numbers_of(buffer, dtype)), axis=0)
    prepare(name, comm, buffer, OPERATIONS["sum"], dtype)()
    assert same_on_all_ranks(buffer), (name, dtype)
    # Half of a last place once for 16 bits, and the float32 sums of the way there.
    unit = {"float64": 2**-53, "float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8}[dtype]
    wide_unit = 2**-53 if dtype == "float64" else 2**-24
    limit = unit * np.abs(exact) + 8 * size * wide_unit
    assert (np.abs(numbers_of(buffer, dtype) - exact) <= limit).all(), (name, dtype)


def check_odd_numbers(name):
    """NaNs that differ, zeros of both signs, infinities: results all ranks agree on."""
    odd = np.array([0x7FC00001, 0xFFC00002, 0x7F800000, 0xFF800000, 0, 0x80000000], np.uint32)
    for operation in OPERATIONS.values():
        values = np.resize(np.roll(odd, rank), 1001) + (np.arange(1001) % 6 < 2) * np.uint32(rank)
        buffer = values.view(np.float32)
        prepare(name, comm, buffer, operation)()
        assert same_on_all_ranks(buffer), (name, operation.name)


for name in ALGORITHMS:
    for operation in OPERATIONS.values():
        for dtype, dtype_class in ((d.name, d.dtype_class) for d in DTYPES.values()):
            if operation.name == "average" and dtype_class == "integer":
                try:
                    prepare(name, comm, np.zeros(3, dtype), operation)
                    raise AssertionError("an average of integers was not refused")
                except UsageError:
                    continue
            for count in counts:
                check_whole_numbers(name, operation, dtype, count)
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        check_rounding(name, dtype)
    if name != "native":
        check_odd_numbers(name)
print(f"ok {rank}")
