"""A thread that communicates while another computes.

Work is done in the order in which it is submitted. Most of it is one call that releases
the GIL, so that the training thread is not held up.
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
        """Hand over a piece of work; the future raises what it raised.

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
        """End the thread after the submitted work, and `last`; to be called once.

        The result is there when nothing runs on the thread any more. Does not block: the
        garbage collector may call this from any thread.
        """
        self._closed = True
        _ending.add(self._thread)
        future: Future[None] = Future()
        self._work.put((last, future))
        self._work.put(None)
        return future

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of a thread that was closed; returns whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, future = item
            try:
                work()
            except BaseException as error:  # handed to the thread that waits
                future.set_exception(error)
            else:
                future.set_result(None)
            # Idle, the thread must not keep alive what it last worked on.
            del item, work, future


def join_ending(within_s: float) -> None:
    """Wait for the end of all threads that were closed.

    One that frees a tensor while the interpreter ends aborts the process: Python ends the thread
    where it takes the GIL, which is in a destructor of torch that may not be left so.
    """
    end_s = time.monotonic() + within_s
    for thread in list(_ending):
        thread.join(max(0.0, end_s - time.monotonic()))


def wait_for(pending: deque[Future[None]]) -> None:
    """Wait for all of it, and forget it; raises what the first failing piece raised."""
    while pending:
        pending.popleft().result()
