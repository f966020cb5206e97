"""The MPI library's own allreduce: always a candidate, and the one to beat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_ext.allreduce.operations import Array, Operation

if TYPE_CHECKING:
    from mpi4py import MPI


def allreduce(comm: MPI.Comm, buffer: Array, operation: Operation) -> None:
    """Reduce `buffer` (1-D, contiguous) over all ranks, in place."""
    from mpi4py import MPI

    comm.Allreduce(MPI.IN_PLACE, buffer, operation.mpi())
