"""Assertions that all ranks make together: each fails on all, and names those it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI
    from numpy.typing import ArrayLike


def parallel_assert(comm: MPI.Comm, condition: object, message: object = "") -> None:
    """Fail on every rank if the condition is false on any, so that ranks go on together or not.

    The message is evaluated on each rank: say what this one found.
    """
    __tracebackhide__ = True
    told = comm.allgather(None if condition else str(message) or "is false")
    wrong = {rank: message for rank, message in enumerate(told) if message is not None}
    assert not wrong, "; ".join(f"rank {rank}: {message}" for rank, message in wrong.items())


def assert_same_bits(comm: MPI.Comm, values: ArrayLike, what: object = "result") -> None:
    """Fail on every rank unless all hold the same bytes; names those that differ from rank 0."""
    __tracebackhide__ = True
    everyone = comm.allgather(np.ascontiguousarray(values).tobytes())
    different = [rank for rank, held in enumerate(everyone) if held != everyone[0]]
    assert not different, f"{what}: ranks {different} hold other bits than rank 0"
