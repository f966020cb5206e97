"""Records on their way between ranks, moved by a thread of their own.

Sender and receiver know of each message beforehand, and who, how long and which tag: nothing
is asked for. The thread looks for what has arrived, and sleeps in between: an MPI library
moves long messages only while it is called.
"""

from __future__ import annotations

import atexit
import queue
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hvd_ext.job.stalls import StallReport, end_job
from hvd_ext.settings import stall_timeout_s
from hvd_ext.units import GIB

if TYPE_CHECKING:
    from mpi4py import MPI

Bytes = NDArray[np.uint8]
# MPI promises tags up to 32767; a pair of ranks has never as many messages under way.
TAGS = 32_000
_PIECE_BYTES = GIB  # MPI counts in 32 bits
_SHORTEST_SLEEP_S, _LONGEST_SLEEP_S = 1e-4, 1e-3


@dataclass(eq=False)
class _Message:
    peer: int
    tag: int
    shared: bool
    data: Future[Bytes]  # of a message that is sent: what it is to hold
    received: Bytes | None = None
    since_s: float = field(default_factory=time.monotonic)
    requests: list[MPI.Request] | None = None


class RecordExchange:
    """Messages between the ranks of a communicator.

    Attributes:
        bytes_sent: so far.
        bytes_received: so far.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        """Start the thread; collective over `comm`, of which a copy is taken."""
        from mpi4py import MPI

        self._comm = comm.Dup()
        self._comm.Set_name("hvd_ext.data")
        # What a person knows a rank by: its number in the world, and its host.
        self._names = self._comm.allgather((MPI.COMM_WORLD.rank, socket.gethostname()))
        self._timeout_s = stall_timeout_s()
        self.bytes_sent = self.bytes_received = 0
        self._new: queue.SimpleQueue[_Message | None] = queue.SimpleQueue()
        self._under_way: list[_Message] = []
        self._failed = False
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hvd_ext.data", daemon=True)
        self._thread.start()
        # Before MPI ends, which may be at the program's end.
        atexit.register(self._leave)

    def send(self, data: Future[Bytes], peer: int, tag: int, *, shared: bool) -> None:
        """Send what `data` will be, once it is there.

        Args:
            data: any number of bytes.
            peer: who receives them.
            tag: that it receives them with.
            shared: they lie where the peer sees them; an empty message says that they do.
        """
        self._new.put(_Message(peer, tag, shared, data))

    def receive(self, into: Bytes, peer: int, tag: int, *, shared: bool) -> Future[Bytes]:
        """Receive what a peer sends with this tag.

        Returns:
            `into`, once it is filled, which cannot be written to any more; raises StallError
            if that takes too long.
        """
        message = _Message(peer, tag, shared, Future(), into)
        self._new.put(message)
        return message.data

    def close(self) -> None:
        """Wait for what is under way, and end; a collective, unless something has failed."""
        self._new.put(None)
        self._thread.join()
        atexit.unregister(self._leave)
        if not self._failed:
            self._comm.Free()

    def _leave(self) -> None:
        self._leaving.set()
        self._new.put(None)
        self._thread.join()

    def _run(self) -> None:
        closing = False
        sleep_s = _SHORTEST_SLEEP_S
        try:
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
                self._under_way = [m for m in self._under_way if not self._advance(m)]
                moved = len(self._under_way) < before
                sleep_s = _SHORTEST_SLEEP_S if moved else min(2 * sleep_s, _LONGEST_SLEEP_S)
        except BaseException as error:  # raised where the records are waited for
            self._failed = True
            for message in self._under_way:
                if message.received is not None:
                    message.data.set_exception(error)

    def _advance(self, message: _Message) -> bool:
        """Post a message, or see whether it is there; returns whether it is done with."""
        from mpi4py import MPI

        if message.requests is None:
            if message.received is None and not message.data.done():
                return False
            if message.received is None and message.data.exception():
                self._failed = True  # raised where this rank uses it: the job ends there
                return True
            message.requests = list(self._post(message))
        if MPI.Request.Testall(message.requests):
            if message.received is None:
                self.bytes_sent += 0 if message.shared else message.data.result().nbytes
            else:
                self.bytes_received += 0 if message.shared else message.received.nbytes
                message.received.flags.writeable = False
                message.data.set_result(message.received)
            return True
        if time.monotonic() - message.since_s > self._timeout_s:
            rank, host = self._names[message.peer]
            report = StallReport([rank], "an exchange of samples", self._timeout_s)
            error = report.error({rank: host})
            end_job(error)
            raise error
        return False

    def _post(self, message: _Message) -> Iterator[MPI.Request]:
        from mpi4py import MPI

        sent = message.received is None
        data = message.data.result() if message.received is None else message.received
        data = data[: 0 if message.shared else None]
        for begin in range(0, max(1, data.size), _PIECE_BYTES):
            piece = [data[begin : begin + _PIECE_BYTES], MPI.BYTE]
            # Pieces have the same tag: MPI keeps their order.
            yield (self._comm.Isend if sent else self._comm.Irecv)(piece, message.peer, message.tag)
