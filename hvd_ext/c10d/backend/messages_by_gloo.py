"""Point to point without MPI: sends and receives of a process group by Gloo."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo  # type: ignore[attr-defined]

from hvd_ext.c10d.backend.point_to_point import PointToPoint
from hvd_ext.c10d.backend.tensors import read, write_back
from hvd_ext.c10d.backend.work import Work
from hvd_ext.errors import HvdExtError
from hvd_ext.job.progress_thread import ProgressThread
from hvd_ext.job.stalls import name_ranks

if TYPE_CHECKING:
    from hvd_ext.job.topology import Topology
    from hvd_ext.shm.block import Block

_FOR_EVER_S = 1e8
_IDLE_WITHIN_S, _END_WITHIN_S = 0.1, 5.0
_NO_TAG = 2**31 - 1


class GlooMessage(Work):
    """A message in flight; Gloo reports its end only to a thread that waits for it."""

    def __init__(
        self,
        name: str,
        said: str,
        request: Any,
        held: Block,
        tensor: torch.Tensor,
        line: _Line,
        limit_s: float,
    ) -> None:
        """Note a message.

        Args:
            name: "send()" or "recv()".
            said: the same with the partner, for errors.
            request: Gloo's request.
            held: the memory that Gloo reads or writes.
            tensor: the tensor that has this memory, or gets its content.
            line: the line that the message belongs to.
            limit_s: how long it is waited for, unless the wait says otherwise.
        """
        super().__init__(name, [tensor])
        self._request, self._held = request, held
        self._said, self._line = said, line
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self.is_watched = self._calls_back = False

    def _wait(self, limit_s: float | None) -> bool:
        limit = self._limit_s if limit_s is None else limit_s
        if not self.is_watched:
            self._settle(limit)
        elif not self._over.wait(limit):
            if limit_s is None:
                raise self.late(self.name, limit)
            return False
        return True

    def watch(self) -> None:
        """Wait for the message without a time limit; for the line's thread."""
        self._settle(_FOR_EVER_S, self._calls_back)

    def _settle(self, limit_s: float, elsewhere: bool = False) -> None:
        with self._lock:
            if self._over.is_set():
                return
            error: BaseException | None = None
            try:
                self._request.wait(timedelta(seconds=limit_s))
                if self.name == "recv()":
                    write_back(self._tensors[0], self._held)
            except RuntimeError as raised:
                late = "imed out" in str(raised)
                error = self.late(self.name, limit_s) if late else _failure(self._said, raised)
            if elsewhere:  # a callback may wait for the next message of the line
                threading.Thread(target=self.settle, args=(error,), daemon=True).start()
            else:
                self.settle(error)

    def get_future(self) -> Any:
        self._calls_back = True
        self._line.watch(self)
        return super().get_future()

    def is_completed(self) -> bool:
        self._line.watch(self)
        return self._over.is_set()

    def source_rank(self) -> int:
        return int(self._request._source_rank())

    _source_rank = source_rank


class _Line:
    """Messages from one rank to another with one tag, which end in the order of their calls.

    A thread waits for them, once the program asks whether one has ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        # Messages that no thread waits for; weak, because a program that drops one does not ask for
        # it again.
        self._messages: WeakValueDictionary[int, GlooMessage] = WeakValueDictionary()
        self._thread: ProgressThread | None = None

    def add(self, message: GlooMessage) -> None:
        with self._lock:
            self._messages[next(self._numbers)] = message

    def watch(self, message: GlooMessage) -> None:
        """Notice the end of a message that no caller waits for."""
        if message.is_watched or message.is_over():
            return
        with self._lock:
            for number, earlier in list(self._messages.items()):
                del self._messages[number]
                earlier.is_watched = True
                self._thread = self._thread or ProgressThread()
                self._thread.submit(earlier.watch)
                if earlier is message:
                    break

    def close(self) -> ProgressThread | None:
        """End the thread after the message that it waits for; returns it, if there is one."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._messages.clear()
        if thread is not None:
            thread.close()
        return thread


class GlooMessages(PointToPoint):
    """One group's messages."""

    def __init__(self, topology: Topology, limit_s: float) -> None:
        """Connect the ranks; collective over the group.

        Args:
            topology: the group's, over a store.
            limit_s: how long a message is waited for.
        """
        super().__init__(topology, limit_s)
        self._lines: defaultdict[tuple[str, int | None, int], _Line] = defaultdict(_Line)
        comm = self._comm
        self._gloo: Any = ProcessGroupGloo(
            PrefixStore(comm.name, comm.store), comm.rank, comm.size, timedelta(seconds=limit_s)
        )

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> GlooMessage:
        return self._begin("send()", "recv()", self._gloo.send, tensor, peer, tag)

    def receive(self, tensor: torch.Tensor, peer: int | None, tag: int) -> GlooMessage:
        return self._begin("recv()", "send()", self._gloo.recv, tensor, peer, tag)

    def _begin(
        self,
        name: str,
        awaited: str,
        begin: Callable[..., Any],
        tensor: torch.Tensor,
        peer: int | None,
        tag: int,
    ) -> GlooMessage:
        said = f"{name} with {name_ranks(self._partners(peer), self._hosts)}"
        held = read(tensor)
        memory = torch.from_numpy(held.array)
        try:
            if peer is None:
                request = self._gloo.recv_anysource([memory], tag)
            else:
                request = begin([memory], peer, tag)
        except RuntimeError as raised:
            raise _failure(said, raised) from None
        line = self._lines[name, peer, tag]
        message = GlooMessage(name, said, request, held, tensor, line, self._limit_s)
        line.add(message)
        message.late = self._late(awaited, peer)
        return message

    def close(self) -> None:
        """Disconnect; messages under way then fail.

        No thread may be in Gloo when the interpreter ends: it would abort the process.
        """
        threads = [thread for line in self._lines.values() if (thread := line.close())]
        if False in [thread.join(_IDLE_WITHIN_S) for thread in threads]:
            # A wait that times out closes Gloo's connections, which ends the other waits. No wait
            # for a rank that has left begins.
            for peer in {*range(self._comm.size)} - {self._comm.rank}:
                with suppress(RuntimeError):
                    never = self._gloo.recv([torch.empty(1, dtype=torch.uint8)], peer, _NO_TAG)
                    never.wait(timedelta(milliseconds=1))
            for thread in threads:
                thread.join(_END_WITHIN_S)
        self._lines.clear()
        # The store is freed with the last reference; torch makes a new one with the next group.
        self._gloo = self._comm = self._lease = None


def _failure(said: str, raised: RuntimeError) -> HvdExtError:
    """Return Gloo's error and the ranks that it concerns, in one line."""
    return HvdExtError(f"{said}: {str(raised).partition(chr(10))[0]}")
