"""A thread that asks what is under way whether it is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_SHORTEST_S, _LONGEST_S = 0.0001, 0.002


class Polled:
    """Asks until all that was added is over; rests where there is nothing.

    Python must not be called by a thread of a backend's, which would abort the process if the
    interpreter has begun to end.
    """

    def __init__(self, name: str) -> None:
        """Prepare.

        Args:
            name: of the thread, which begins with the first that is added.
        """
        self._name = name
        self._new = threading.Condition()
        self._under_way: list[tuple[Callable[[], bool], float]] = []
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def add(self, over: Callable[[], bool]) -> None:
        """Have a thread ask whether something is over; what follows from that, `over` does."""
        with self._new:
            self._under_way.append((over, time.monotonic()))
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name=self._name, daemon=True)
                self._thread.start()
            self._new.notify()

    def close(self) -> None:
        """Ask once more, and end the thread."""
        with self._new:
            self._is_closed = True
            self._new.notify()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        # First of all a pause: most of it is waited for by its own callers.
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
            if left:  # a time is known to a twentieth
                waited_s = time.monotonic() - left[-1][1]
                pause_s = min(max(_SHORTEST_S, waited_s / 20), _LONGEST_S)
            else:
                pause_s = _SHORTEST_S
            del found, left
