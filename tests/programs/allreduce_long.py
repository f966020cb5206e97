"""Messages of several segments and blocks, by every algorithm, against exact sums.

Argument: "huge" for int8 messages of more than 2^31 bytes instead, by every algorithm
that is worth it at that length, and in the arena.
"""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI

from hvd_ext.allreduce.algorithms import ALGORITHMS
from hvd_ext.allreduce.operations import OPERATIONS
from hvd_ext.allreduce.persistent import PersistentAllreduce
from hvd_ext.allreduce.prepare import prepare
from hvd_ext.allreduce.segments import SEGMENT_BYTES
from hvd_ext.job.topology import discover

comm = MPI.COMM_WORLD
size, rank = comm.size, comm.rank


def check(name, count, dtype):
    buffer = np.empty(count, dtype)
    check_call(name, buffer, dtype, prepare(name, comm, buffer, OPERATIONS["sum"]))


def check_call(name, buffer, dtype, call):
    """Element i is i % 7 + the rank; in blocks, so that a huge message needs no second copy."""
    count = len(buffer)
    length = min(count, 7_000_000)
    blocks = [slice(begin, begin + length) for begin in range(0, count, length)]
    pattern = (np.arange(length) % 7).astype(dtype)
    for block in blocks:
        buffer[block] = pattern[: len(buffer[block])] + rank
    call()
    for block in blocks:
        expected = pattern[: len(buffer[block])] * dtype(size) + dtype(sum(range(size)))
        assert np.array_equal(buffer[block], expected), (name, count, dtype, block)


if "huge" in sys.argv:
    for name in ("native", "ring", "rabenseifner", "tree", "double_tree", "recursive_doubling"):
        check(name, 2**31 + 2**20 + 1, np.int8)
    planned = PersistentAllreduce.in_arena(discover(comm, 60.0), 2**31 + 2**20 + 1, "int8")
    check_call("arena", planned.buffer, np.int8, planned)
else:
    segment = SEGMENT_BYTES // 4
    for name in ALGORITHMS:
        for count in (segment, segment + 1, 2 * segment * size - 1, 5 * segment + 3):
            check(name, count, np.float32)
        check(name, SEGMENT_BYTES + 1, np.int8)
        check(name, 2**21 + 1, np.float16)  # one more than a block of float32
        check(name, 2 * segment + 1, np.float32)
        # Twice as many bytes as float32: the scratch has to grow.
        check(name, 2 * segment + 1, np.float64)
print(f"ok {rank}")
