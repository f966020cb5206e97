"""Checking and timing calls that reduce a buffer over all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.errors import HvdExtError

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.allreduce.operations import Array

Call = Callable[[], object]


def check(world: MPI.Comm, comm: MPI.Comm, name: str, buffer: Array, call: Call) -> None:
    """Check that `call` sums `buffer` over the ranks of `comm`; collective over `world`.

    Small whole numbers, so that every order of summing is exact, in 16 bits too.

    Raises:
        HvdExtError: on every rank, if the sum is wrong on any.
    """
    values = np.arange(len(buffer)) % 5
    buffer[:] = values + comm.rank % 3
    call()
    total = sum(rank % 3 for rank in range(comm.size))
    right = np.array_equal(buffer, (values * comm.size + total).astype(buffer.dtype))
    wrong = [rank for rank, good in enumerate(world.allgather(right)) if not good]
    buffer.fill(0)
    if wrong:
        raise HvdExtError(
            f"{name} gave a wrong sum of {len(buffer)} {buffer.dtype} on ranks {wrong}: "
            "report it with your MPI library's version"
        )


def sample_s(world: MPI.Comm, call: Call, repeats: int) -> float:
    """Time of one of `repeats` calls, by the slowest rank; the same on every rank."""
    from mpi4py import MPI

    world.Barrier()
    start_s = time.perf_counter()
    for _ in range(repeats):
        call()
    return float(world.allreduce((time.perf_counter() - start_s) / repeats, op=MPI.MAX))


def repeats_for(world: MPI.Comm, call: Call, least_s: float, most: int) -> tuple[int, float]:
    """How many calls a sample takes, and the time of one.

    Short calls are timed several at a time, so that neither the clock nor the ranks'
    different starts count.
    """
    sample_s(world, call, 1)
    once_s = sample_s(world, call, 2)
    return min(most, 1 + int(least_s / once_s)), once_s


def interleave(
    world: MPI.Comm, calls: Mapping[str, Call], repeats: Mapping[str, int], rounds: int
) -> dict[str, list[float]]:
    """Samples in s of each call, interleaved, so that a disturbance affects all calls."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            samples[name].append(sample_s(world, call, repeats[name]))
    return samples
