"""Planned allreduces, in and outside the arena, for every dtype and operation."""

from __future__ import annotations

import resource

import numpy as np
import pytest
from mpi4py import MPI

from hvd_ext.allreduce.persistent import PersistentAllreduce
from hvd_ext.errors import UsageError
from hvd_ext.job.topology import discover
from hvd_ext.shm.regions import WindowError
from hvd_ext.shm.window import PIECE_BYTES

topology = discover(MPI.COMM_WORLD, 30)
rank, size = topology.world.rank, topology.world.size
COMBINE = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}


def part(count: int, dtype: str, of_rank: int, seed: int) -> np.ndarray:
    return ((np.arange(count) * (of_rank + 3) + seed) % 5 + 1).astype(dtype)


def check(planned: PersistentAllreduce, name: str, dtype: str, count: int) -> None:
    for seed in range(4):  # again and again, in the same memory
        planned.buffer[:] = part(count, dtype, rank, seed)
        planned()
        expected = part(count, dtype, 0, seed)
        for other in range(1, size):
            combine = COMBINE["sum" if name == "average" else name]
            combine(expected, part(count, dtype, other, seed), out=expected)
        if name == "average":
            expected = (expected / size).astype(dtype)
        np.testing.assert_allclose(planned.buffer, expected, rtol=2e-3, err_msg=f"{name} {dtype}")
        assert len(set(topology.world.allgather(planned.buffer.tobytes()))) == 1


for dtype in ("float32", "float64", "float16", "int64", "int32", "int8", "uint8"):
    for name in (*COMBINE, "average"):
        if name == "average" and "int" in dtype:
            with pytest.raises(UsageError, match="average"):
                PersistentAllreduce(topology, np.zeros(3, dtype), name, algorithm="shared_memory")
            continue
        for count in (0, 1, size - 1, 65, 1000):
            array = np.empty(count, dtype)
            shared = PersistentAllreduce(topology, array, name, algorithm="shared_memory")
            check(shared, name, dtype, count)
            check(PersistentAllreduce.in_arena(topology, count, dtype, name), name, dtype, count)
            check(PersistentAllreduce(topology, array, name), name, dtype, count)
assert PersistentAllreduce(topology, np.zeros(9)).algorithm == "shared_memory"
assert PersistentAllreduce.in_arena(topology, 9, "float64").algorithm == "shared_memory"

# Outside the arena, through it: one piece, several, and one more element.
for count in (PIECE_BYTES // 4 - 1, PIECE_BYTES // 4 + 1, 5 * PIECE_BYTES // 4 + 3):
    for dtype in ("float32", "int8", "float16"):
        long = np.empty(count, dtype)
        check(PersistentAllreduce(topology, long, algorithm="shared_memory"), "sum", dtype, count)
with pytest.raises(UsageError, match="'bool'"):
    PersistentAllreduce.in_arena(topology, 3, "bool")
for wrong in (np.zeros(3, bool), np.zeros(3, np.complex64)):
    with pytest.raises(UsageError, match="use one of"):
        PersistentAllreduce(topology, wrong)

# Where one rank has no memory to share, all take the library's own.
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
if rank == size - 1:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
alone = PersistentAllreduce(topology, np.empty(50_000))
with pytest.raises(WindowError):
    PersistentAllreduce(topology, np.empty(50_000), algorithm="shared_memory")
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
assert alone.algorithm == "native"
check(alone, "sum", "float64", 50_000)
print(f"ok {rank}")
