"""One call of an algorithm, planned: arguments are checked and decisions are made once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.allreduce.algorithms import ALGORITHMS, NATIVE, implementation
from hvd_ext.allreduce.algorithms.half import reduce_half
from hvd_ext.allreduce.operations import Array, Operation
from hvd_ext.dtypes import DTYPES
from hvd_ext.errors import UsageError

if TYPE_CHECKING:
    from mpi4py import MPI

# A dtype's own name is slow to ask for.
_STORED = {name: np.dtype(dtype.stored_as) for name, dtype in DTYPES.items()}
_NAMES = {np.dtype(name): name for name, dtype in DTYPES.items() if dtype.stored_as == name}

Algorithm = Callable[["MPI.Comm", Array, Operation], None]


def _quiet(algorithm: Algorithm) -> Algorithm:
    """Treat overflow and NaN as results like any other, as MPI does: no warnings."""

    @functools.wraps(algorithm)
    def allreduce(comm: MPI.Comm, buffer: Array, operation: Operation) -> None:
        with np.errstate(all="ignore"):
            algorithm(comm, buffer, operation)

    return allreduce


@functools.cache
def _algorithm(name: str) -> Algorithm:
    reduce = implementation(name)
    return reduce if name == NATIVE else _quiet(reduce)


def prepare(
    algorithm: str, comm: MPI.Comm, buffer: Array, operation: Operation, dtype: str | None = None
) -> Callable[[], None]:
    """Plan an allreduce of `buffer`, in place; the call that it returns may be repeated.

    Here, and in no algorithm, 16-bit floats are taken through float32 and averages are
    divided. No rank communicates before that call.

    Args:
        algorithm: one of ALGORITHMS.
        comm: the ranks.
        buffer: 1-D, contiguous and writable; the same count on every rank.
        operation: one of OPERATIONS.
        dtype: type of the elements where numpy has none: "bfloat16", whose bits
        lie in an array of uint16.

    Raises:
        UsageError: one of these is not supported.
    """
    name = check_dtype(buffer, dtype)
    if algorithm not in ALGORITHMS:
        raise UsageError(f"invalid algorithm {algorithm!r}: use one of {', '.join(ALGORITHMS)}")
    flags = buffer.flags
    if buffer.ndim != 1 or not flags.c_contiguous or not flags.writeable:
        raise UsageError(
            f"a buffer of shape {buffer.shape} and strides {buffer.strides}: give one that is "
            "1-D, contiguous and writable"
        )
    reduce = _algorithm(algorithm)
    dtype_class = DTYPES[name].dtype_class
    if dtype_class == "half":
        through_float32 = _quiet(functools.partial(reduce_half, reduce))
        return functools.partial(through_float32, comm, buffer, operation)
    if operation.name != "average":
        return functools.partial(reduce, comm, buffer, operation)
    if dtype_class == "integer":
        raise UsageError(f"average of {name}: use sum, or a float dtype")

    def average() -> None:
        reduce(comm, buffer, operation)
        np.divide(buffer, comm.size, out=buffer)

    return average


def dtype_class_of(buffer: Array) -> str:
    """Return the class of the buffer's dtype; float for a dtype that MPI will refuse."""
    name = _NAMES.get(buffer.dtype)
    return "float" if name is None else DTYPES[name].dtype_class


def check_dtype(buffer: Array, dtype: str | None = None) -> str:
    """The dtype's name.

    Raises:
        UsageError: no algorithm supports it.
    """
    name = _NAMES.get(buffer.dtype) if dtype is None else dtype
    if name not in DTYPES or buffer.dtype != _STORED[name]:
        raise UsageError(
            f"dtype {name or buffer.dtype.name!r} in an array of {buffer.dtype}: use one of "
            f"{', '.join(DTYPES)}, bfloat16 in an array of uint16"
        )
    return name
