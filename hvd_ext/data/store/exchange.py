"""Records on their way between ranks, moved by a separate thread.

Sender and receiver know each message's partner, length and tag beforehand, so nothing is requested.
A shorter message says why a record could not be read. The thread polls, and sleeps in between,
because an MPI library moves long messages only while it is called. After an error, every wait or
request for a record raises it, and the job ends soon, because other ranks wait for this one.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hvd_ext.errors import HvdExtError, StallError, UsageError
from hvd_ext.job.ending import at_exit, not_at_exit
from hvd_ext.job.stalls import StallReport, end_job
from hvd_ext.units import GIB
from hvd_ext.variables import STALL_TIMEOUT_S

if TYPE_CHECKING:
    from mpi4py import MPI

Bytes = NDArray[np.uint8]
# MPI guarantees tags up to 32767; a pair of ranks never has that many messages in flight.
TAGS = 32_000
_PIECE_BYTES = GIB  # MPI counts in 32 bits
_SHORTEST_SLEEP_S, _LONGEST_SLEEP_S = 1e-4, 1e-3


@dataclass(eq=False)
class _UnderWay:
    """A transfer in which a peer takes part.

    Attributes:
        peer: the peer's rank.
        look: makes progress without waiting, and returns whether the transfer has finished.
        record: the result, if it has one.
    """

    peer: int
    look: Callable[[], bool]
    record: Future[Bytes] | None = None
    since_s: float = field(default_factory=time.monotonic)


class RecordExchange:
    """Records that the ranks of a communicator send each other, or wait for.

    Attributes:
        bytes_sent: bytes sent so far.
        bytes_received: bytes received so far.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        """Start the thread; collective over `comm`, which is copied."""
        from mpi4py import MPI

        self._comm = comm.Dup()
        self._comm.Set_name("hvd_ext.data")
        # The names of ranks in messages: number in the world, and host.
        self._names = self._comm.allgather((MPI.COMM_WORLD.rank, socket.gethostname()))
        self._timeout_s = STALL_TIMEOUT_S.read()
        self.bytes_sent = self.bytes_received = 0
        # Not a SimpleQueue, whose get() may hang after its timeout (CPython 3.11).
        self._new: queue.Queue[_UnderWay | None] = queue.Queue()
        self._under_way: list[_UnderWay] = []
        self._failed = False
        # The reason why nothing is moved any more; read and set under the lock.
        self._ended: HvdExtError | None = None
        self._lock = threading.Lock()
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hvd_ext.data", daemon=True)
        self._thread.start()
        at_exit(self._leave)

    def send(self, data: Future[Bytes], length: int, peer: int, tag: int) -> None:
        """Send the result of `data` once it is there, or the reason why it could not be read.

        Args:
            data: future of the bytes.
            length: number of bytes.
            peer: rank that receives them.
            tag: tag of the message.

        Raises:
            HvdExtError: the exchange has failed, or is closed.
        """
        requests: list[MPI.Request] = []

        def look() -> bool:
            if not data.done():
                return False
            if data.cancelled():
                self._failed = True
                return True
            error = data.exception()
            parts = _failure_parts(error, length) if error else _parts(data.result())
            requests.extend(() if requests else _post(self._comm.Isend, parts, peer, tag))
            if not _over(requests):
                return False
            self.bytes_sent += 0 if error else length
            return True

        self._begin(_UnderWay(peer, look))

    def receive(self, into: Bytes, peer: int, tag: int) -> Future[Bytes]:
        """Receive the record that a peer sends with this tag.

        Returns:
            A future of `into`, which is then filled and read-only. It raises UsageError if the
            peer could not read the record, StallError if it takes too long, or another HvdExtError
            if the exchange fails first.

        Raises:
            HvdExtError: the exchange has failed, or is closed.
        """
        from mpi4py import MPI

        record: Future[Bytes] = Future()
        requests: list[MPI.Request] = []

        def look() -> bool:
            parts, statuses = _parts(into), list[MPI.Status]()
            requests.extend(() if requests else _post(self._comm.Irecv, parts, peer, tag))
            if not _over(requests, statuses):
                return False
            first_bytes = statuses[0].Get_count(MPI.BYTE)
            if first_bytes < parts[0].size:
                record.set_exception(UsageError(said(into[:first_bytes])))
                return True
            self.bytes_received += into.nbytes
            into.flags.writeable = False
            record.set_result(into)
            return True

        self._begin(_UnderWay(peer, look, record))
        return record

    def wait_for(self, found: Callable[[], Bytes | None], peer: int) -> Future[Bytes]:
        """Wait for a record that a peer writes into memory that this rank sees.

        Args:
            found: returns the record once it is there, or raises UsageError if the peer cannot read
                it.
            peer: rank that writes it.

        Returns:
            A future of the result of `found`; it raises the same errors as the future of `receive`.

        Raises:
            HvdExtError: the exchange has failed, or is closed.
        """
        coming: Future[Bytes] = Future()

        def look() -> bool:
            try:
                record = found()
            except UsageError as error:
                coming.set_exception(error)
                return True
            if record is not None:
                coming.set_result(record)
            return record is not None

        self._begin(_UnderWay(peer, look, coming))
        return coming

    def close(self) -> None:
        """Wait for unfinished transfers, and end; a collective, unless the exchange has failed."""
        self._new.put(None)
        self._thread.join()
        # MPI may still write to the memory of abandoned transfers, so `_leave` keeps it alive.
        if not self._failed:
            not_at_exit(self._leave)
            self._comm.Free()

    def _leave(self, failed: bool) -> None:
        self._leaving.set()
        self._new.put(None)
        self._thread.join()

    def _begin(self, entry: _UnderWay) -> None:
        if entry.record is not None:
            entry.record.set_running_or_notify_cancel()  # a transfer by a peer cannot be cancelled
        with self._lock:
            if self._ended:
                raise self._ended
            self._new.put(entry)

    def _run(self) -> None:
        try:
            self._move()
            self._failed |= bool(self._under_way)
            self._end(HvdExtError("samples are asked for after their store or reader was closed"))
        except StallError as error:  # which ends the job
            self._failed = True
            self._end(error)
        except BaseException as error:
            failure = HvdExtError(
                f"the exchange of samples failed ({type(error).__name__}: {error}): look for "
                "earlier errors of any rank"
            )
            failure.__cause__ = error
            self._failed = True
            self._end(failure)
            end_job(failure)  # other ranks wait for this one

    def _end(self, error: HvdExtError) -> None:
        """Raise an error in all waits for records, and in all later requests."""
        with self._lock:
            self._ended = error
        while not self._new.empty():
            if entry := self._new.get():
                self._under_way.append(entry)
        for entry in self._under_way:
            # Further transfers were begun in the meantime.
            if entry.record is not None and not entry.record.done():
                entry.record.set_exception(error)

    def _move(self) -> None:
        """Move the transfers that have begun, until the exchange is closed or abandoned."""
        closing = False
        sleep_s = _SHORTEST_SLEEP_S
        while not self._leaving.is_set():
            try:
                if self._under_way:
                    new = self._new.get(timeout=sleep_s)
                elif closing:
                    return
                else:
                    new = self._new.get()
                if new is None:
                    closing = True
                else:
                    self._under_way.append(new)
                    continue  # as long as there are more
            except queue.Empty:
                pass
            before = len(self._under_way)
            self._under_way = [entry for entry in self._under_way if not self._over(entry)]
            moved = len(self._under_way) < before
            sleep_s = _SHORTEST_SLEEP_S if moved else min(2 * sleep_s, _LONGEST_SLEEP_S)

    def _over(self, entry: _UnderWay) -> bool:
        if entry.look():
            return True
        if time.monotonic() - entry.since_s > self._timeout_s:
            rank, host = self._names[entry.peer]
            report = StallReport([rank], "an exchange of samples", self._timeout_s)
            error = report.error({rank: host})
            end_job(error)
            raise error
        return False


def why(error: BaseException, most: int) -> Bytes:
    """Encode an error's text in at most `most` bytes."""
    return np.frombuffer(str(error).encode()[:most], np.uint8)


def said(text: Bytes) -> str:
    """Decode the text that `why` has encoded."""
    return text.tobytes().rstrip(b"\0").decode(errors="ignore") or "a sample cannot be read"


def _parts(data: Bytes) -> list[Bytes]:
    """The messages of a record."""
    return [data[at : at + _PIECE_BYTES] for at in range(0, max(1, data.size), _PIECE_BYTES)]


def _failure_parts(error: BaseException, length: int) -> list[Bytes]:
    """Return as many messages as a record of `length` bytes has, the first one shorter."""
    first = why(error, max(0, min(_PIECE_BYTES, length) - 1))
    return [first, *(np.empty(0, np.uint8) for _ in range(_PIECE_BYTES, length, _PIECE_BYTES))]


def _post(
    operation: Callable[[Any, int, int], MPI.Request], parts: list[Bytes], peer: int, tag: int
) -> Iterator[MPI.Request]:
    """Begin to send or receive; parts have the same tag, since MPI keeps their order."""
    from mpi4py import MPI

    for part in parts:
        yield operation([part, MPI.BYTE], peer, tag)


def _over(requests: list[MPI.Request], statuses: list[MPI.Status] | None = None) -> bool:
    from mpi4py import MPI

    return bool(MPI.Request.Testall(requests, statuses))
