"""A thread that communicates while another computes.

Work is done in the order in which it is submitted. Most of it is one call that releases the GIL, so
that the training thread is not delayed.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from hvd_ext.errors import UsageError

Work = Callable[[], object]
# Threads that were asked to end.
_ending: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class ProgressThread:
    """Runs work in order on one daemon thread."""

    def __init__(self) -> None:
        self._closed = False
        self._work: queue.SimpleQueue[tuple[Work, Future[None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="hvd_ext progress", daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> Future[None]:
        """Submit a piece of work; the future raises its error.

        Raises:
            UsageError: the thread was ended.
        """
        if self._closed:
            raise UsageError(
                "an exchange after hvd.shutdown(): create the optimizer again after hvd.init()"
            )
        future: Future[None] = Future()
        self._work.put((work, future))
        return future

    def close(self, last: Work = lambda: None) -> Future[None]:
        """End the thread after the submitted work and `last`; to be called once.

        The future is done when the thread runs no more work. This does not block: the garbage
        collector may call it from any thread.
        """
        self._closed = True
        _ending.add(self._thread)
        future: Future[None] = Future()
        self._work.put((last, future))
        self._work.put(None)
        return future

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until a closed thread has ended; returns whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, future = item
            try:
                work()
            except BaseException as error:  # raised in the thread that waits
                future.set_exception(error)
            else:
                future.set_result(None)
            # While it is idle, the thread must not keep its last work alive.
            del item, work, future


def join_ending(within_s: float) -> None:
    """Wait until all closed threads have ended.

    A thread that frees a tensor while the interpreter ends aborts the process: Python ends the
    thread where it takes the GIL, in a destructor of torch that must not be left like that.
    """
    end_s = time.monotonic() + within_s
    for thread in list(_ending):
        thread.join(max(0.0, end_s - time.monotonic()))


def wait_for(pending: deque[Future[None]]) -> None:
    """Wait for all of it, and forget it; raises the error of the first piece that failed."""
    while pending:
        pending.popleft().result()
