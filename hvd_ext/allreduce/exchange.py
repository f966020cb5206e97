"""The ways in which a persistent allreduce reduces its buffer, apart from shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from hvd_ext.allreduce.algorithms import NATIVE, native
from hvd_ext.allreduce.prepare import prepare
from hvd_ext.dtypes import DTYPES

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.allreduce.operations import Array, Operation

# Any value but 0 and None is an error code of the exchange.
PlannedCall = Callable[[], "int | None"]


class Exchange(Protocol):
    """Reduces one buffer, in place, again and again."""

    @property
    def run(self) -> PlannedCall:
        """Reduce the buffer; called directly, because each further call costs time."""

    def on(self, comm: MPI.Comm) -> PlannedCall:
        """Return the same exchange on another communicator of these ranks, for another thread."""

    def resume(self, code: int) -> None:
        """Finish a `run` that returned a code, or raise the error of that code.

        After a stall the job ends soon.
        """


class MessageExchange:
    """By messages, with one of ALGORITHMS.

    Attributes:
        run: reduces the buffer.
    """

    def __init__(
        self, algorithm: str, comm: MPI.Comm, buffer: Array, operation: Operation, dtype: str
    ) -> None:
        """Plan the exchange; UsageError as `prepare` raises it."""
        self._rest = (buffer, operation, dtype)
        self._algorithm = algorithm
        self.run = self.on(comm)

    def on(self, comm: MPI.Comm) -> PlannedCall:
        buffer, operation, dtype = self._rest
        call = prepare(self._algorithm, comm, buffer, operation, dtype)
        as_it_is = operation.name != "average" and DTYPES[dtype].dtype_class != "half"
        if self._algorithm == NATIVE and as_it_is:
            return native.plan(comm, buffer, operation)
        return call

    def resume(self, code: int) -> None:
        from mpi4py import MPI

        raise MPI.Exception(code)


class StagedFromDevice:
    """Device memory that is copied to the host, reduced there and copied back."""

    def __init__(self, inner: Exchange, device: Any, host: Array) -> None:
        """Stage `device`, a CuPy array, through `host`, which `inner` reduces."""
        self._inner = inner
        self._device = device
        self._host = host.reshape(device.shape)

    def run(self) -> int | None:
        return self._staged(self._inner.run)

    def on(self, comm: MPI.Comm) -> PlannedCall:
        run = self._inner.on(comm)
        return lambda: self._staged(run)

    def resume(self, code: int) -> None:
        self._inner.resume(code)

    def _staged(self, run: PlannedCall) -> int | None:
        self._device.get(out=self._host)
        if code := run():
            self._inner.resume(code)
        self._device.set(self._host)
        return None
