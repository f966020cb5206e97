"""The MPI library's own allreduce: always a candidate, and the one to beat."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_ext.allreduce.algorithms.segments import MOST_BYTES
from hvd_ext.allreduce.operations import Array, Operation
from hvd_ext.shm.c_call import CCall

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


def plan(comm: MPI.Comm, buffer: Array, operation: Operation) -> Callable[[], int | None]:
    """The same call with all its arguments at hand: it costs less than mpi4py's own.

    Returns:
        A call that gives MPI's error code, 0 or None if there is none.
    """
    function = _mpi_allreduce()
    if buffer.nbytes > MOST_BYTES or function is None:
        return functools.partial(allreduce, comm, buffer, operation)
    from mpi4py import MPI

    in_place, op = _mpi(operation.mpi_name)
    call = _Call(
        function,
        int(in_place) % 2 ** (8 * ctypes.sizeof(ctypes.c_void_p)),
        buffer.ctypes.data,
        _handle(MPI.Datatype.fromcode(buffer.dtype.char)),
        _handle(op),
        _handle(comm),
        buffer.size,
        MPI._sizeof(MPI.Comm) > ctypes.sizeof(ctypes.c_int),
    )
    return CCall(_library().native_allreduce, call, buffer, comm)


class _Handle(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("pointer", ctypes.c_void_p))


class _Call(ctypes.Structure):
    _fields_ = (
        ("allreduce", ctypes.c_void_p),
        ("in_place", ctypes.c_void_p),
        ("buffer", ctypes.c_void_p),
        ("type", _Handle),
        ("operation", _Handle),
        ("comm", _Handle),
        ("count", ctypes.c_int32),
        ("pointers", ctypes.c_int32),
    )


def _handle(thing: MPI.Comm | MPI.Datatype | MPI.Op) -> _Handle:
    """The library's own handle of what mpi4py wraps."""
    from mpi4py import MPI

    handle = _Handle()
    ctypes.memmove(ctypes.byref(handle), MPI._addressof(thing), MPI._sizeof(thing))
    return handle


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(__file__).with_name("libnative.so")))


@functools.cache
def _mpi_allreduce() -> int | None:
    """The address of the function that mpi4py calls; None: it cannot be found."""
    from mpi4py import MPI

    # A tool that was preloaded comes first, as it does for mpi4py.
    for library in (None, MPI.__file__):
        with contextlib.suppress(AttributeError, OSError):
            return ctypes.cast(ctypes.CDLL(library).MPI_Allreduce, ctypes.c_void_p).value
    return None


@functools.cache
def _mpi(operation: str) -> tuple[Any, MPI.Op]:
    # Importing MPI starts it, so no module may do that; an import in each call would cost as much
    # time as the call.
    from mpi4py import MPI

    return MPI.IN_PLACE, getattr(MPI, operation)
