"""Waits that MPI's calls do not show, by name, for a recorder that shows a running job."""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from hvd_ext.events import recorder

# A unique name that Horovod, or hvd_ext in its place, gives to a call without a name.
_ONCE = re.compile(r"noname\.\d+$")
# A program may give each call a different name. If so many other names were used since, the count
# of a name starts over, on every rank.
_MOST_NAMES = 10_000


def waiting_for_ranks(
    operation: str, about: str, since_s: float, late: Sequence[int]
) -> AbstractContextManager[None]:
    """A context in which this thread waits for ranks that are known to be late.

    Args:
        operation: its name in MPI.
        about: name of the exchange.
        since_s: when the wait began, on the monotonic clock.
        late: the late ranks of the job.
    """
    found = recorder()
    if found is None:
        return nullcontext()
    ranks = (ctypes.c_int * len(late))(*late)
    return _waiting(found, operation, about, 0, 0, 0, since_s, len(late), ranks)


@contextmanager
def _waiting(library: Any, operation: str, about: str, *others: Any) -> Iterator[None]:
    library.hvprof_named_wait_begins(operation.encode(), about.encode(), *others)
    try:
        yield
    finally:
        library.hvprof_wait_ends()


class NamedOperations:
    """Collectives that ranks match by name, each of which runs once all ranks have requested it.

    The n-th operation of a name is the same one on all ranks of a group.
    """

    def __init__(self, owner: str, rank: int, ranks: Sequence[int], within: str = "") -> None:
        """Name the group.

        Args:
            owner: name of the library that owns the operations.
            rank: this process's number in the group.
            ranks: the group's ranks, by their numbers in the job.
            within: the group among several of the owner's, such as " in process set 1".
        """
        self._library: Any = recorder()
        self._counts: dict[str, int] = {}  # in the order of their last use
        self._joins = 0
        self._owner, self._within = owner, within
        name = owner + within
        self._group = self._library.hvprof_group(
            _digest(f"{name} {list(ranks)}", 8) | 1,
            *(len(ranks), rank, name.encode(), (ctypes.c_int * len(ranks))(*ranks)),
        )

    def submit(self, name: str) -> int:
        """Note that this rank has requested an operation; returns its key."""
        count = 1
        if not _ONCE.search(name):
            count += self._counts.pop(name, 0)
            self._counts[name] = count
            if len(self._counts) > _MOST_NAMES:
                del self._counts[next(iter(self._counts))]
        key = _digest(f"{name} {count} {self._joins}{self._within}", 4) | 1
        self._library.hvprof_submitted(key)
        return key

    def joined(self) -> None:
        """Restart all counts, on all ranks, because ranks that joined early have counted fewer."""
        self._counts.clear()
        self._joins += 1

    def waiting(self, operation: str, name: str, key: int) -> AbstractContextManager[None]:
        """A context in which this thread waits for an operation.

        Args:
            operation: its name in MPI.
            name: the operation's name.
            key: the result of `submit`.
        """
        of = f" of {name!r}" if name != operation else ""
        about = f"{self._owner}'s {operation}{of}{self._within}"
        return _waiting(self._library, operation, about, self._group, key, 0, 0.0, 0, None)


def _digest(text: str, count_bytes: int) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=count_bytes).digest()
    return int.from_bytes(digest, "little")
