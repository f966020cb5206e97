"""Tree: a binomial reduction to rank 0, then a binomial broadcast.

A rank has lg p partners at most, and most ranks have one: for short messages on many
ranks (Thakur, Rabenseifner and Gropp, IJHPCA 19, 2005).
Time: ceil(lg p) (2 a + 2 n b + n g).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_ext.allreduce.algorithms.segments import transfer, transfer_and_combine
from hvd_ext.allreduce.operations import Array, Operation

if TYPE_CHECKING:
    from mpi4py import MPI


def allreduce(comm: MPI.Comm, buffer: Array, operation: Operation) -> None:
    """Reduce `buffer` (1-D, contiguous) over all ranks, in place.

    Rank 0 has the result first and all others get its copy: the same bits.
    """
    size, rank = comm.size, comm.rank
    none = buffer[:0]
    parent, children = family(rank, size)
    for child in children:
        transfer_and_combine(comm, none, child, buffer, child, operation)
    if parent is not None:
        # In segments, because the parent combines them so.
        transfer_and_combine(comm, buffer, parent, none, parent, operation)
        transfer(comm, none, parent, buffer, parent)
    for child in reversed(children):
        transfer(comm, buffer, child, none, child)


def family(rank: int, size: int) -> tuple[int | None, list[int]]:
    """Parent (None for rank 0) and children, nearest first, in the binomial tree."""
    children: list[int] = []
    distance = 1
    while distance < size:
        if rank & distance:
            return rank - distance, children
        if rank + distance < size:
            children.append(rank + distance)
        distance *= 2
    return None, children
