"""Futures of threads that are not Python's, whose ends are noticed by a thread that is."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

_SHORTEST_S, _LONGEST_S = 0.0001, 0.005


class Polled:
    """Futures that a thread looks at.

    A future that is called back by a thread of the backend's would run Python there, and abort the
    process if the interpreter has begun to end.
    """

    def __init__(self) -> None:
        self._new = threading.Condition()
        self._futures: deque[tuple[Any, Callable[[Any], None], float]] = deque()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def add(self, future: Any, done: Callable[[Any], None]) -> None:
        """Have `done` be called with a future once that is done."""
        with self._new:
            self._futures.append((future, done, time.monotonic()))
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="hvprof", daemon=True)
                self._thread.start()
            self._new.notify()

    def close(self) -> None:
        """End the thread."""
        with self._new:
            self._is_closed = True
            self._new.notify()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        while True:
            with self._new:
                while not (self._futures or self._is_closed):
                    self._new.wait()
                found = [self._futures.popleft() for _ in range(len(self._futures))]
            left = []
            for future, done, begun_s in found:
                if future.done():
                    done(future)
                else:
                    left.append((future, done, begun_s))
            with self._new:
                self._futures.extendleft(reversed(left))
                if self._is_closed:
                    return
            if left:
                waited_s = time.monotonic() - left[-1][2]
                time.sleep(min(max(_SHORTEST_S, waited_s / 20), _LONGEST_S))
