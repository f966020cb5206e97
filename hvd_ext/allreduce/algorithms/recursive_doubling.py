"""Recursive doubling: partners at distance 1, 2, 4, ... exchange all they have.

It sends lg p messages of full length, so it is for short ones (Thakur, Rabenseifner and Gropp,
IJHPCA 19, 2005). Time: lg p (a + n b + n g); for other p, two messages more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_ext.allreduce.algorithms.folding import fold, largest_power_of_two, unfold
from hvd_ext.allreduce.algorithms.segments import transfer_and_combine
from hvd_ext.allreduce.operations import Array, Operation

if TYPE_CHECKING:
    from mpi4py import MPI


def allreduce(comm: MPI.Comm, buffer: Array, operation: Operation) -> None:
    """Reduce `buffer` (1-D, contiguous) over all ranks, in place.

    Partners combine the same two operands in the same order, so all ranks hold the
    same bits.
    """
    rank, core = comm.rank, largest_power_of_two(comm.size)
    fold(comm, buffer, operation)
    distance = 1
    while rank < core and distance < core:
        partner = rank ^ distance
        transfer_and_combine(comm, buffer, partner, buffer, partner, operation)
        distance *= 2
    unfold(comm, buffer)
