"""Rabenseifner: a reduce-scatter by recursive halving, an allgather by doubling.

The bytes of a ring in 2 lg p messages, for lengths in between and many ranks
(Rabenseifner, ICCS 2004; Thakur, Rabenseifner and Gropp, IJHPCA 19, 2005).
Time: 2 lg p a + 2 (p-1)/p n b + (p-1)/p n g; for other p than powers of two,
(2 floor(lg p) + 2) a + (2 (p-1)/p + 2) n b + (1 + (p-1)/p) n g.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_ext.allreduce.algorithms.folding import fold, largest_power_of_two, unfold
from hvd_ext.allreduce.algorithms.segments import transfer, transfer_and_combine
from hvd_ext.allreduce.operations import Array, Operation

if TYPE_CHECKING:
    from mpi4py import MPI


def allreduce(comm: MPI.Comm, buffer: Array, operation: Operation) -> None:
    """Reduce `buffer` (1-D, contiguous) over all ranks, in place.

    An element is reduced by one rank and handed on, so all ranks hold the same bits.
    """
    fold(comm, buffer, operation)
    if comm.rank < largest_power_of_two(comm.size):
        _reduce_core(comm, buffer, operation)
    unfold(comm, buffer)


def _reduce_core(comm: MPI.Comm, buffer: Array, operation: Operation) -> None:
    rank, core = comm.rank, largest_power_of_two(comm.size)
    # Partners differ in one bit and agree on the bits before it, hence on the range
    # that they halve.
    begin, end = 0, len(buffer)
    halved: list[tuple[int, int, int]] = []
    distance = 1
    while distance < core:
        partner, middle = rank ^ distance, (begin + end) // 2
        halved.append((partner, begin, end))
        lower, upper = buffer[begin:middle], buffer[middle:end]
        if rank < partner:
            transfer_and_combine(comm, upper, partner, lower, partner, operation)
            end = middle
        else:
            transfer_and_combine(comm, lower, partner, upper, partner, operation)
            begin = middle
        distance *= 2
    for partner, first, last in reversed(halved):
        theirs = buffer[end:last] if rank < partner else buffer[first:begin]
        transfer(comm, buffer[begin:end], partner, theirs, partner)
        begin, end = first, last
