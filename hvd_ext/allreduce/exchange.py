"""The ways in which a persistent allreduce reduces its buffer, apart from shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from hvd_ext.allreduce.prepare import prepare
from hvd_ext.errors import StallError

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.allreduce.operations import Array, Operation

# Anything but 0 or None means that ranks did not arrive.
PlannedCall = Callable[[], "int | None"]


class Exchange(Protocol):
    """Reduces one buffer, in place, again and again."""

    @property
    def run(self) -> PlannedCall:
        """Reduces the buffer; called as it is, as each further call costs time."""

    def on(self, comm: MPI.Comm) -> PlannedCall:
        """The same on another communicator of the same ranks, for another thread."""

    def stall(self, code: int) -> StallError:
        """The error that `run` stands for by what it gave; the job ends soon."""


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
        self.run: PlannedCall = prepare(algorithm, comm, *self._rest)

    def on(self, comm: MPI.Comm) -> PlannedCall:
        return prepare(self._algorithm, comm, *self._rest)

    def stall(self, code: int) -> StallError:
        """Never called: MPI itself waits."""
        raise NotImplementedError(code)


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

    def stall(self, code: int) -> StallError:
        return self._inner.stall(code)

    def _staged(self, run: PlannedCall) -> int | None:
        self._device.get(out=self._host)
        code = run()
        if not code:
            self._device.set(self._host)
        return code
