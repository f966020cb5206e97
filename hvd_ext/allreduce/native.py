"""The MPI library's own allreduce: always a candidate, and the one to beat."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hvd_ext.allreduce.operations import Array, Operation
from hvd_ext.allreduce.segments import MOST_BYTES

if TYPE_CHECKING:
    from mpi4py import MPI


def allreduce(comm: MPI.Comm, buffer: Array, operation: Operation) -> None:
    """Reduce `buffer` (1-D, contiguous) over all ranks, in place."""
    in_place, op = _mpi(operation.mpi_name)
    if buffer.nbytes <= MOST_BYTES:
        comm.Allreduce(in_place, buffer, op)
        return
    most = MOST_BYTES // buffer.itemsize
    for begin in range(0, len(buffer), most):
        comm.Allreduce(in_place, buffer[begin : begin + most], op)


def prepare(comm: MPI.Comm, buffer: Array, operation: Operation) -> Callable[[], None]:
    """The same call with all its arguments, which is as fast as the library's own."""
    if buffer.nbytes > MOST_BYTES:
        return functools.partial(allreduce, comm, buffer, operation)
    from mpi4py import MPI

    in_place, op = _mpi(operation.mpi_name)
    # Of bytes and a type mpi4py need not find out the type at each call.
    typed = (buffer.view("B"), buffer.size, MPI.Datatype.fromcode(buffer.dtype.char))
    return functools.partial(comm.Allreduce, in_place, typed, op)


@functools.cache
def _mpi(operation: str) -> tuple[Any, MPI.Op]:
    # Importing MPI starts it, so that no module may; an import a call costs a call's time.
    from mpi4py import MPI

    return MPI.IN_PLACE, getattr(MPI, operation)
