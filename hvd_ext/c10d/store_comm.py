"""A communicator over a c10d store, for ranks of one node that MPI did not start.

It has the part of mpi4py's interface that is needed to make and plan the node's memory. Messages
are short, and a training step sends none. They are Python literals, not pickles: anyone who reaches
the store's port can write to it, and must not be able to run code in a rank.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from typing import Any

from hvd_ext.job.stalls import StallReport
from hvd_ext.job.waiting import message, until

# Each poll is a message to the store.
MOST_SLEEP_S = 0.01


class StoreComm:
    """Some ranks that have a store in common.

    Attributes:
        store: torch.distributed's store.
        name: this communicator's name, with which its keys begin.
        rank: this rank's number.
        size: number of ranks.
    """

    def __init__(self, store: Any, name: str, rank: int, size: int, timeout_s: float) -> None:
        """Note the ranks; nothing is exchanged yet.

        Args:
            store: torch.distributed's store.
            name: the same on every rank, and different from other communicators' names.
            rank: this rank's number.
            size: number of ranks.
            timeout_s: how long to wait for ranks.
        """
        self.store, self.name, self.rank, self.size = store, name, rank, size
        self._timeout_s = timeout_s
        self._gathered, self._copies = 0, 0
        # Number of messages to and from each rank with each tag.
        self._counts: dict[tuple[str, int, int], itertools.count[int]] = {}

    def allgather(self, value: Any) -> list[Any]:
        """Gather every rank's value, in rank order; collective.

        Args:
            value: made of numbers, texts, bytes, lists, tuples and sets.

        Raises:
            StallError: ranks did not reach this in time; names them.
        """
        turn, self._gathered = self._gathered, self._gathered + 1
        keys = [self._key("all", turn, rank) for rank in range(self.size)]
        self.store.set(keys[self.rank], _encode(value))
        waiting = set(range(self.size))

        def over() -> bool:
            waiting.difference_update([r for r in waiting if self.store.check([keys[r]])])
            return not waiting

        if not until(over, self._timeout_s, most_sleep_s=MOST_SLEEP_S):
            raise StallReport(sorted(waiting), "an agreement", self._timeout_s).error()
        values = [_decode(self.store.get(key)) for key in keys]
        if turn:  # every rank has read the key, because every rank has arrived here
            self.store.delete_key(self._key("all", turn - 1, self.rank))
        return values

    def bcast(self, value: Any, root: int = 0) -> Any:
        """Return the root's value; collective."""
        return self.allgather(value if self.rank == root else None)[root]

    def isend(self, value: object, dest: int, tag: int) -> StoreRequest:
        """Send a value."""
        self.store.set(self._message_key(self.rank, dest, tag), _encode(value))
        return StoreRequest(lambda: (True, None), self._timeout_s)

    def irecv(self, buffer: Any = None, *, source: int, tag: int) -> StoreRequest:
        """Begin to receive a value; `buffer` is not needed."""
        key = self._message_key(source, self.rank, tag)

        def test() -> tuple[bool, Any]:
            if not self.store.check([key]):
                return False, None
            value = _decode(self.store.get(key))
            self.store.delete_key(key)
            return True, value

        return StoreRequest(test, self._timeout_s)

    def Dup(self) -> StoreComm:
        """Make another communicator of the same ranks; collective."""
        self._copies += 1
        name = self._key("copy", self._copies)
        return StoreComm(self.store, name, self.rank, self.size, self._timeout_s)

    def Set_name(self, name: str) -> None:
        """Do nothing: keys have their own names."""

    def _message_key(self, source: int, dest: int, tag: int) -> str:
        end = ("to", dest, tag) if source == self.rank else ("from", source, tag)
        number = next(self._counts.setdefault(end, itertools.count()))
        return self._key("message", source, dest, tag, number)

    def _key(self, *words: object) -> str:
        return "/".join(map(str, (self.name, *words)))


class StoreRequest:
    """A message in flight."""

    def __init__(self, test: Callable[[], tuple[bool, Any]], timeout_s: float) -> None:
        self.test = test
        self._timeout_s = timeout_s

    def wait(self) -> Any:
        """The value that was received."""
        arrived, value = message(self, self._timeout_s, MOST_SLEEP_S)
        if not arrived:
            raise StallReport([], "a message", self._timeout_s).error()
        return value


def _encode(value: object) -> bytes:
    return repr(value).encode()


def _decode(text: bytes) -> Any:
    return ast.literal_eval(text.decode())
