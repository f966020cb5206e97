"""Recursive doubling: partners at distance 1, 2, 4, ... exchange all they have.

lg p messages of full length, so for short ones (Thakur, Rabenseifner and Gropp,
IJHPCA 19, 2005). Ranks beyond the largest power of two hand their data to a partner
first and get the result back last. Time: lg p (a + n b + n g).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.allreduce.operations import Array, Operation

if TYPE_CHECKING:
    from mpi4py import MPI


def allreduce(comm: MPI.Comm, buffer: Array, operation: Operation) -> None:
    """Reduce `buffer` (1-D, contiguous) over all ranks, in place.

    Partners combine the same two operands, and the operations are commutative to the
    bit, so all ranks hold the same bits.
    """
    size, rank = comm.size, comm.rank
    core = 1 << (size.bit_length() - 1)
    received = np.empty_like(buffer)
    if rank >= core:
        comm.Send(buffer, rank - core, 0)
        comm.Recv(buffer, rank - core, 1)
        return
    if rank + core < size:
        comm.Recv(received, rank + core, 0)
        operation.combine(buffer, received, out=buffer)
    distance = 1
    while distance < core:
        partner = rank ^ distance
        comm.Sendrecv(buffer, partner, 2, received, partner, 2)
        operation.combine(buffer, received, out=buffer)
        distance *= 2
    if rank + core < size:
        comm.Send(buffer, rank + core, 1)
