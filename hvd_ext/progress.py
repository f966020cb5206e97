"""A thread that communicates while another computes.

Work is done in the order in which it is handed over. What it does is mostly one call
without the interpreter lock, so the training thread is not held up.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Work = Callable[[], object]


class Progress:
    """Runs work in order on one daemon thread."""

    def __init__(self) -> None:
        """Start the thread."""
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._in_flight = 0
        self._thread = threading.Thread(target=self._run, name="hvd_ext progress", daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> None:
        """Hand over a piece of work."""
        self._in_flight += 1
        self._work.put(work)

    def wait(self) -> None:
        """Wait for all work handed over; raises what the first failing piece raised."""
        while self._in_flight:
            error = self._results.get()
            self._in_flight -= 1
            if error is not None:
                raise error

    def close(self) -> None:
        """End the thread after the work that was handed over."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            result: BaseException | None = None
            try:
                work()
            except BaseException as error:  # handed to the thread that waits
                result = error
            # Idle, the thread must not keep alive what it last worked on.
            del work
            self._results.put(result)
