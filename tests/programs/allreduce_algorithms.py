"""Every algorithm x operation x dtype x awkward count, against numpy."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from hvd_ext.allreduce.operations import OPERATIONS
from hvd_ext.allreduce.registry import ALGORITHMS

comm = MPI.COMM_WORLD
counts = sorted({0, 1, 2, 3, comm.size - 1, comm.size, comm.size + 1, 255, 256, 257, 10_007})
for name, algorithm in ALGORITHMS.items():
    for operation in OPERATIONS.values():
        for dtype in (np.float32, np.float64, np.int32, np.int64, np.int8, np.uint8):
            for count in counts:
                # Whole numbers so small that no order of combining rounds.
                parts = [
                    (np.arange(count) * (rank + 3) % 5 + 1).astype(dtype)
                    for rank in range(comm.size)
                ]
                buffer = parts[comm.rank].copy()
                algorithm(comm, buffer, operation)
                expected = parts[0].copy()
                for part in parts[1:]:
                    operation.combine(expected, part, out=expected)
                assert np.array_equal(buffer, expected), (name, operation.name, dtype, count)
    # With rounding: all ranks hold the same bits, and the error is that of the dtype.
    generator = np.random.default_rng(comm.rank)
    mine = generator.standard_normal(5001).astype(np.float32)
    buffer = mine.copy()
    algorithm(comm, buffer, OPERATIONS["sum"])
    assert len(set(comm.allgather(buffer.tobytes()))) == 1, name
    exact = np.sum(comm.allgather(mine.astype(np.float64)), axis=0)
    assert np.abs(buffer - exact).max() <= 4e-7 * comm.size * np.abs(exact).max(), name
print(f"ok {comm.rank}")
