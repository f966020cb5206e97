"""Arrays that a node's ranks make together: each made once, and kept once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hvd_ext.data.store.node import share_arrays
from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.shm import regions
from tests.ranks.asserts import parallel_assert

if TYPE_CHECKING:
    from mpi4py import MPI


def proportional_bytes() -> int:
    """What this process has of its node's memory; a page that n share counts 1/n.

    Pages of files do not count: other processes share those of libraries, and when these end, the
    shares of this one grow.
    """
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    kinds = ("Pss_Anon:", "Pss_Shmem:")
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(kinds))


def item(number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    return rng.integers(0, 255, (number, 3), np.uint8), rng.random((2, number)).astype(">f4")


@pytest.mark.ranks(pytest.param(1, marks=pytest.mark.long), 3)
def test_every_rank_has_all_that_one_has_made(comm: MPI.Comm) -> None:
    made: list[int] = []

    def make(number: int) -> tuple[np.ndarray, np.ndarray]:
        made.append(number)
        # What is cut out of another is not contiguous.
        return tuple(np.repeat(array, 2, 1)[:, ::2] for array in item(number))

    found = share_arrays(8, make, comm)
    everyone = sorted(number for numbers in comm.allgather(made) for number in numbers)
    same = [
        np.array_equal(mine, expected) and mine.dtype == expected.dtype
        for number in range(8)
        for mine, expected in zip(found[number], item(number), strict=True)
    ]
    parallel_assert(comm, all(same) and everyone == list(range(8)), f"{same} {everyone}")
    with pytest.raises(ValueError, match="read-only"):
        found[1][0][0, 0] = 1


@pytest.mark.long
@pytest.mark.ranks(8)
def test_memory_is_that_of_the_set_whatever_the_number_of_ranks(comm: MPI.Comm) -> None:
    each, count = 2**19, 256
    # What MPI and Python take once does not count.
    share_arrays(8, lambda number: [np.full(each, number, np.uint8)], comm)
    before = comm.allreduce(proportional_bytes())
    found = share_arrays(count, lambda number: [np.full(each, number, np.uint8)], comm)
    # All of it is read by every rank.
    total = sum(int(array.sum(dtype=np.int64)) for (array,) in found)
    comm.Barrier()
    grown = comm.allreduce(proportional_bytes()) - before
    comm.Barrier()
    parallel_assert(comm, total == each * sum(range(count)), f"{total}")
    parallel_assert(comm, 0.9 < grown / (count * each) < 1.05, f"{grown}")


@pytest.mark.ranks(3)
def test_an_error_of_one_rank_is_raised_by_all(comm: MPI.Comm) -> None:
    def make(number: int) -> list[np.ndarray]:
        if number == 4:
            raise UsageError("image 4 is damaged")
        return [np.zeros(number)]

    try:
        share_arrays(6, make, comm)
        said = ""
    except UsageError as error:
        said = str(error)
    parallel_assert(comm, said == "image 4 is damaged", said)


@pytest.mark.ranks(2)
def test_ranks_that_cannot_share_memory_keep_all_of_it(
    comm: MPI.Comm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = regions._open_region

    def in_another_container(pid: int, *rest: Any) -> memoryview:
        if pid != os.getpid():
            raise OSError(0, "another container")
        return opened(pid, *rest)

    monkeypatch.setattr(regions, "_open_region", in_another_container)
    found = share_arrays(3, item, comm)
    same = [np.array_equal(a, b) for n in range(3) for a, b in zip(found[n], item(n), strict=True)]
    parallel_assert(comm, all(same) and "falling back to a copy" in caplog.text, caplog.text)


@pytest.mark.ranks(2)
def test_any_error_of_one_rank_is_an_error_of_all(comm: MPI.Comm) -> None:
    def make(number: int) -> list[np.ndarray]:
        return [np.zeros(4)] if number else [1 / number]

    with pytest.raises(HvdExtError, match="a sample cannot be made: ZeroDivisionError"):
        share_arrays(2, make, comm)
