"""Persistent allreduces, in and outside shared memory, for every dtype and operation."""

from __future__ import annotations

import resource

import numpy as np
import pytest

from hvd_ext.allreduce.algorithms import native
from hvd_ext.allreduce.exchange import MessageExchange
from hvd_ext.allreduce.operations import OPERATIONS, Operation
from hvd_ext.allreduce.persistent import PersistentAllreduce
from hvd_ext.errors import UsageError
from hvd_ext.shm.regions import WindowError
from hvd_ext.shm.window import PIECE_BYTES
from tests.ranks.asserts import assert_same_bits

IN_LONG = [pytest.param(size, marks=pytest.mark.long) for size in (2, 4)]
pytestmark = pytest.mark.ranks(1, 3, *IN_LONG)
COMBINE = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}
DTYPES = ["float32", "float64", "float16", "int64", "int32", "int8", "uint8"]


def part(count: int, dtype: str, of_rank: int, seed: int) -> np.ndarray:
    return ((np.arange(count) * (of_rank + 3) + seed) % 5 + 1).astype(dtype)


def check(topology, planned: PersistentAllreduce, name: str) -> None:
    count, dtype = len(planned.buffer), planned.buffer.dtype.name
    for seed in range(4):  # again and again, in the same memory
        planned.buffer[:] = part(count, dtype, topology.world.rank, seed)
        planned()
        expected = part(count, dtype, 0, seed)
        for other in range(1, topology.world.size):
            combine = COMBINE["sum" if name == "average" else name]
            combine(expected, part(count, dtype, other, seed), out=expected)
        if name == "average":
            expected = (expected / topology.world.size).astype(dtype)
        np.testing.assert_allclose(planned.buffer, expected, rtol=2e-3)
        assert_same_bits(topology.world, planned.buffer)


@pytest.mark.parametrize("name", [*COMBINE, "average"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_operation_and_dtype(topology, dtype, name):
    if name == "average" and "int" in dtype:
        with pytest.raises(UsageError, match="average"):
            PersistentAllreduce(topology, np.zeros(3, dtype), name, algorithm="shared_memory")
        return
    for count in (0, 1, topology.world.size - 1, 65, 1000):
        array = np.empty(count, dtype)
        for planned in (
            PersistentAllreduce(topology, array, name, algorithm="shared_memory"),
            PersistentAllreduce.in_arena(topology, count, dtype, name),
            PersistentAllreduce(topology, array, name),
            PersistentAllreduce(topology, array, name, algorithm="native"),
        ):
            check(topology, planned, name)


def test_ranks_of_one_node_use_its_memory(topology):
    assert PersistentAllreduce(topology, np.zeros(9)).algorithm == "shared_memory"
    assert PersistentAllreduce.in_arena(topology, 9, "float64").algorithm == "shared_memory"


@pytest.mark.parametrize("dtype", ["float32", "int8", "float16"])
def test_a_buffer_elsewhere_is_staged_in_pieces(topology, dtype):
    """One piece, several, and one more element."""
    for count in (PIECE_BYTES // 4 - 1, PIECE_BYTES // 4 + 1, 5 * PIECE_BYTES // 4 + 3):
        long = np.empty(count, dtype)
        check(topology, PersistentAllreduce(topology, long, algorithm="shared_memory"), "sum")


def test_other_dtypes_are_refused(topology):
    with pytest.raises(UsageError, match="'bool'"):
        PersistentAllreduce.in_arena(topology, 3, "bool")
    for wrong in (np.zeros(3, bool), np.zeros(3, np.complex64)):
        with pytest.raises(UsageError, match="use one of"):
            PersistentAllreduce(topology, wrong)


def test_where_one_rank_has_no_memory_to_share_all_use_the_librarys_own(topology):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if topology.world.rank == topology.world.size - 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        alone = PersistentAllreduce(topology, np.empty(50_000))
        with pytest.raises(WindowError):
            PersistentAllreduce(topology, np.empty(50_000), algorithm="shared_memory")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert alone.algorithm == "native"
    check(topology, alone, "sum")


def test_what_the_library_refuses_is_raised(topology):
    from mpi4py import MPI

    of_integers = Operation("sum", np.bitwise_and, "BAND")
    run = native.plan(topology.world, np.zeros(3, np.float32), of_integers)
    if (code := run()) == 0:  # MPI need not look
        pytest.skip("this library takes it")
    exchange = MessageExchange("native", topology.world, np.zeros(3), OPERATIONS["sum"], "float64")
    with pytest.raises(MPI.Exception) as caught:
        exchange.resume(code)
    assert caught.value.Get_error_class() in (MPI.ERR_OP, MPI.ERR_ARG, MPI.ERR_INTERN)
