"""Any number of ranks as a power of two: the ranks beyond it hand their data to a partner.

The cost is a message of n bytes in and one back, and one reduction of n bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_ext.allreduce.algorithms.segments import transfer, transfer_and_combine
from hvd_ext.allreduce.operations import Array, Operation

if TYPE_CHECKING:
    from mpi4py import MPI


def largest_power_of_two(size: int) -> int:
    """The largest power of two that is at most `size`: ranks below it do the work."""
    return 1 << (size.bit_length() - 1)


def fold(comm: MPI.Comm, buffer: Array, operation: Operation) -> None:
    """Reduce the data of the ranks above the largest power of two into their partners'."""
    core, none = largest_power_of_two(comm.size), buffer[:0]
    if comm.rank >= core:
        # In segments, because the partner combines them so.
        partner = comm.rank - core
        transfer_and_combine(comm, buffer, partner, none, partner, operation)
    elif comm.rank + core < comm.size:
        partner = comm.rank + core
        transfer_and_combine(comm, none, partner, buffer, partner, operation)


def unfold(comm: MPI.Comm, buffer: Array) -> None:
    """Give the ranks beyond the core what their partners hold."""
    core, none = largest_power_of_two(comm.size), buffer[:0]
    if comm.rank >= core:
        transfer(comm, none, comm.rank - core, buffer, comm.rank - core)
    elif comm.rank + core < comm.size:
        transfer(comm, buffer, comm.rank + core, none, comm.rank + core)
