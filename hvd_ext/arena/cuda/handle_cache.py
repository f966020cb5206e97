"""Handles of other processes' memory, opened once and kept: the registration cache.

Opening a handle takes as long as moving megabytes. Handles in use stay open. Unused ones
stay open too, up to a bound, and the least recently used is closed first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from hvd_ext.events import cache_lookup

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass
class _Entry(Generic[V]):
    value: V
    users: int


class HandleCache(Generic[K, V]):
    """Opens the memory behind a handle, and closes it when it is neither in use nor recent.

    Each look-up is reported to hvprof, which shows the hit rate. Threads may share a cache: one
    closes an arena while another makes one.

    Attributes:
        hits: look-ups of a handle that was open.
        misses: look-ups that had to open it.
    """

    def __init__(
        self, open_handle: Callable[[K], V], close: Callable[[V], object], most: int
    ) -> None:
        """Begin with nothing open.

        Args:
            open_handle: opens the memory behind a handle; its errors are passed on.
            close: closes what `open_handle` opened.
            most: how many that are not in use may stay open.
        """
        self._open = open_handle
        self._close = close
        self._most = most
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()  # least recently used first
        # The collector may release in the middle of either.
        self._lock = threading.RLock()
        self.hits = 0
        self.misses = 0

    def lease(self, handle: K) -> V:
        """The memory behind a handle, open until it is released as often as leased."""
        with self._lock:
            entry = self._entries.get(handle)
            found = entry is not None
            if entry is None:
                entry = self._entries[handle] = _Entry(self._open(handle), 0)
            entry.users += 1
            self._entries.move_to_end(handle)
            self.hits += found
            self.misses += not found
        cache_lookup("hvd_ext, CUDA IPC handles", hit=found)
        return entry.value

    def release(self, handle: K) -> None:
        """End one lease.

        Raises:
            ValueError: there is none.
        """
        with self._lock:
            entry = self._entries.get(handle)
            if entry is None or entry.users == 0:
                raise ValueError(f"handle {handle!r} is not leased: release it once for each lease")
            entry.users -= 1
            self._entries.move_to_end(handle)  # it was in use until now
            idle = [key for key, entry in self._entries.items() if entry.users == 0]
            for key in idle[: max(0, len(idle) - self._most)]:
                self._close(self._entries.pop(key).value)
