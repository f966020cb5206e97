"""Exchanges of bytes, any number of them, for all collectives that do not reduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hvd_ext.allreduce.algorithms.segments import MOST_BYTES, transfer
from hvd_ext.allreduce.operations import Array

if TYPE_CHECKING:
    from mpi4py import MPI


def exchange(comm: MPI.Comm, outgoing: Sequence[Array], incoming: Sequence[Array]) -> None:
    """Send an array to each rank, and receive one from each: pairwise, a step for each rank.

    Args:
        comm: the ranks.
        outgoing: uint8, by rank.
        incoming: uint8, by rank; as long as that rank's array for this one.
    """
    incoming[comm.rank][:] = outgoing[comm.rank]
    for distance in range(1, comm.size):
        to, source = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        transfer(comm, outgoing[to], to, incoming[source], source)


def broadcast(comm: MPI.Comm, array: Array, root: int) -> None:
    """Give every rank the root's array (uint8), in place."""
    for begin in range(0, len(array), MOST_BYTES):
        comm.Bcast(array[begin : begin + MOST_BYTES], root)
