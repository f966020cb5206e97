"""A thread that polls unfinished operations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_SHORTEST_S, _LONGEST_S = 0.0001, 0.002


class Polled:
    """Polls until all added operations have ended; sleeps if there are none.

    A backend's own thread must not call Python: it would abort the process if the interpreter has
    begun to end.
    """

    def __init__(self, name: str) -> None:
        """Prepare.

        Args:
            name: name of the thread, which starts with the first operation.
        """
        self._name = name
        self._new = threading.Condition()
        self._under_way: list[tuple[Callable[[], bool], float]] = []
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def add(self, over: Callable[[], bool]) -> None:
        """Let the thread call `over` until it returns True; `over` also does what follows."""
        with self._new:
            self._under_way.append((over, time.monotonic()))
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name=self._name, daemon=True)
                self._thread.start()
            self._new.notify()

    def close(self) -> None:
        """Poll once more, and end the thread."""
        with self._new:
            self._is_closed = True
            self._new.notify()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        # A pause comes first, because the callers themselves wait for most operations.
        pause_s = _SHORTEST_S
        while True:
            time.sleep(pause_s)
            with self._new:
                while not (self._under_way or self._is_closed):
                    self._new.wait()
                found, self._under_way = self._under_way, []
                is_last = self._is_closed
            left = [(over, since_s) for over, since_s in found if not over()]
            if is_last:
                return
            with self._new:
                self._under_way = [*left, *self._under_way]
            if left:  # times are then accurate to a twentieth
                waited_s = time.monotonic() - left[-1][1]
                pause_s = min(max(_SHORTEST_S, waited_s / 20), _LONGEST_S)
            else:
                pause_s = _SHORTEST_S
            del found, left
