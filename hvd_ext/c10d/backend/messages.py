"""Point to point: sends and receives of a process group, in any order, by MPI.

A long message moves only while some thread is in MPI, so one thread of the process tests all
messages that no other thread waits for.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

import torch

from hvd_ext.c10d.backend.point_to_point import PointToPoint
from hvd_ext.c10d.backend.tensors import read, write_back
from hvd_ext.c10d.backend.work import Work
from hvd_ext.errors import HvdExtError, MismatchError, StallError, UsageError
from hvd_ext.job.abandoned import abandon
from hvd_ext.job.polled import Polled
from hvd_ext.job.waiting import until

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.job.topology import Topology
    from hvd_ext.shm.block import Block

# Groups may use one communicator one after the other: a message that nobody received must not match
# a receive of a later group.
_GROUPS_APART = 32
_TAG_STEP = 64  # `monitored_allgather` uses the upper half
_MOST_SLEEP_S = 0.002
_LOOKS = 50  # without a pause, because a partner has often arrived by then


class Message(Work):
    """A message in flight."""

    def __init__(
        self,
        name: str,
        request: MPI.Request,
        memory: Block,
        tensor: torch.Tensor,
        receives: bool,
        limit_s: float,
    ) -> None:
        """Note a message.

        Args:
            name: its name in errors.
            request: MPI's request.
            memory: the memory that it reads or writes.
            tensor: the tensor that has this memory, or gets its content.
            receives: whether the tensor gets the content.
            limit_s: how long a wait lasts, unless it has its own limit.
        """
        super().__init__(name, [tensor])
        self._request, self._memory = request, memory
        self._receives, self._limit_s = receives, limit_s
        self._lock = threading.Lock()
        self._source = -1

    def poll(self, *, calls_back: bool = True) -> bool:
        """Whether the message has ended; the call lets MPI move it.

        Args:
            calls_back: callbacks may run on this thread.
        """
        if self._over.is_set():
            return True
        from mpi4py import MPI

        status = MPI.Status()
        with self._lock:
            if self._over.is_set():
                return True
            error: BaseException | None = None
            try:
                if not self._request.Test(status):
                    return False
                if self._receives:
                    self._take(status)
            except MPI.Exception as raised:  # raised in the thread that waits, as the next one
                error = raised
                if raised.Get_error_class() == MPI.ERR_TRUNCATE:
                    error = self._mismatch("more")
            except Exception as raised:  # raised by the wait, too
                error = raised
            self._error = error
            self._over.set()
        if calls_back or self._future is None:
            self.settle(error)
        else:
            threading.Thread(target=self.settle, args=(error,), daemon=True).start()
        return True

    def _take(self, status: MPI.Status) -> None:
        from mpi4py import MPI

        self._source = status.source
        found = status.Get_count(MPI.BYTE)
        if found != self._memory.count_bytes:
            raise self._mismatch(found)
        write_back(self._tensors[0], self._memory)

    def _mismatch(self, found: int | str) -> MismatchError:
        return MismatchError(
            f"{self.name}: {found} bytes came for a tensor of {self._memory.count_bytes}: make the "
            "sizes match"
        )

    def _wait(self, limit_s: float | None) -> bool:
        within_s = self._limit_s if limit_s is None else limit_s
        if until(self.poll, within_s, looks=_LOOKS, most_sleep_s=_MOST_SLEEP_S):
            return True
        if limit_s is None:
            raise self.late(self.name, self._limit_s)
        return False

    def is_completed(self) -> bool:
        return self.poll()

    def is_success(self) -> bool:
        return self.poll() and self._error is None

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def give_up(self) -> bool:
        """Abandon the request to MPI if it is unfinished. Returns True if it was."""
        with self._lock:
            if self._over.is_set():
                return False
            abandon([self._request], self._memory, self._tensors)
            self._error = HvdExtError(f"{self.name}: the process group has ended")
            self._over.set()
        self.settle(self._error)
        return True


class Messages(PointToPoint):
    """One group's messages."""

    def __init__(self, topology: Topology, limit_s: float) -> None:
        from mpi4py import MPI

        super().__init__(topology, limit_s)
        self._under_way: list[Message] = []
        self._is_spoilt = False
        most = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
        self._most = (2**15 - 1 if most is None else int(most)) // _TAG_STEP - 1

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> Message:
        memory = read(tensor)
        request = self._comm.Isend(memory.array, peer, self._tag("send()", tag))
        return self._note("send()", "recv()", request, memory, tensor, peer)

    def receive(self, tensor: torch.Tensor, peer: int | None, tag: int) -> Message:
        from mpi4py import MPI

        memory = read(tensor)
        source = MPI.ANY_SOURCE if peer is None else peer
        request = self._comm.Irecv(memory.array, source, self._tag("recv()", tag))
        return self._note("recv()", "send()", request, memory, tensor, peer)

    def _tag(self, name: str, tag: int) -> int:
        if not 0 <= tag <= self._most:
            raise UsageError(f"{name} with tag {tag}: use one of 0 to {self._most}")
        return tag * _TAG_STEP + self._lease.uses % _GROUPS_APART

    def _note(
        self,
        name: str,
        awaited: str,
        request: MPI.Request,
        memory: Block,
        tensor: torch.Tensor,
        peer: int | None,
    ) -> Message:
        message = Message(name, request, memory, tensor, name == "recv()", self._limit_s)
        message.late = self._late(awaited, peer)
        if not message.poll():
            self._under_way = [one for one in self._under_way if not one.is_over()]
            self._under_way.append(message)
            # A callback may wait for another message, which this thread has to test.
            _poller.add(functools.partial(message.poll, calls_back=False))
        return message

    def meet(self, limit_s: float) -> None:
        try:
            super().meet(limit_s)
        except StallError:
            self._is_spoilt = True  # a rank that comes later would match a later group's barrier
            raise

    def close(self) -> None:
        given_up = [message for message in self._under_way if message.give_up()]
        self._under_way.clear()
        if not (given_up or self._is_spoilt):
            self._lease.give_back()


_poller = Polled("hvd_ext messages")
