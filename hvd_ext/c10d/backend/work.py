"""The handle of a collective or a message, and the order in which a group runs them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from hvd_ext.c10d.torch_internals import WorkBase, untraced
from hvd_ext.engine.compared import AgreedError, one_line
from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.events import region
from hvd_ext.job.gate import Gate
from hvd_ext.job.progress_thread import ProgressThread

Run = Callable[[], object]


class _Future(torch.futures.Future[Any]):
    """A future that knows which operation it waits for."""

    work: Work | None = None

    def wait(self) -> Any:
        if self.work is not None:
            self.work._wait(None)
        return super().wait()


class Work(WorkBase):
    """One operation of a process group."""

    def __init__(self, name: str, result: Sequence[torch.Tensor]) -> None:
        """Note a running operation.

        Args:
            name: its name in errors, such as "all_reduce()".
            result: the future's value.
        """
        super().__init__()
        self.name = name
        self._tensors = list(result)
        # Made only if the program asks for it.
        self._future: _Future | None = None
        self._future_lock = threading.Lock()
        self._over = Gate()
        self._error: BaseException | None = None
        # Makes the error of a wait that timed out after this many seconds.
        self.late: Callable[[str, float], HvdExtError] = lambda name, s: HvdExtError(
            f"{name} did not end within {s:g} s"
        )
        # A thread that is about to wait calls it.
        self.about_to_wait: Callable[[], None] = lambda: None

    def settle(self, error: BaseException | None = None) -> None:
        """End the operation, and wake the threads that wait; callbacks run here."""
        with self._future_lock:
            self._error = error
            self._over.set()
            future = self._future
        if future is not None and future.work is not None:
            future.work = None  # breaks the reference cycle
            self._complete(future)

    def _complete(self, future: _Future) -> None:
        error = self._error
        if error is None:
            future.set_result(self._tensors)
        elif isinstance(error, Exception):
            future.set_exception(error)
        else:  # Ctrl-C, which a future cannot hold
            future.set_exception(HvdExtError(f"{self.name} was interrupted"))

    @untraced
    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the operation has ended; raises its error.

        Args:
            timeout: 0 or None: as long as the group allows.

        Raises:
            StallError: it did not end in time; names the missing ranks, if known.
        """
        limit_s = timeout.total_seconds() if timeout else 0.0
        with region("exposed", kind="communication"):
            is_over = self._wait(limit_s if limit_s > 0 else None)
        if not is_over:
            raise self.late(self.name, limit_s)
        if self._error is not None:
            raise self._error
        return True

    def _wait(self, limit_s: float | None) -> bool:
        if not self._over.is_set():
            self.about_to_wait()
        return self._over.wait(limit_s)

    def synchronize(self) -> None:
        self.wait()

    @untraced
    def get_future(self) -> Any:
        with self._future_lock:
            if self._future is None:
                self._future = _Future()
                if self._over.is_set():
                    self._complete(self._future)
                else:
                    self._future.work = self
            return self._future

    def is_over(self) -> bool:
        """Whether it is known to be over."""
        return self._over.is_set()

    def is_completed(self) -> bool:
        return self.is_over()

    def is_success(self) -> bool:
        return self._over.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._tensors


class Together(WorkBase):
    """Several operations as one."""

    def __init__(self, works: Sequence[Work]) -> None:
        super().__init__()
        self._works = list(works)
        self._future = torch.futures.collect_all([work.get_future() for work in works])

    @untraced
    def wait(self, timeout: timedelta | None = None) -> bool:
        return all(work.wait(timeout) for work in self._works)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def get_future(self) -> Any:
        return self._future


class Turns:
    """Runs a group's collectives in the order of their calls, one at a time.

    If the caller waits anyway and nothing is queued, the collective runs on the calling thread,
    because passing it to another thread takes longer than a short message.

    The callbacks of a collective's future run before the next collective, and collectives that they
    begin run at once. The order is therefore the same on ranks where the collective ended before
    the callback was added. A callback that waits for a queued collective passes its turn to another
    thread.
    """

    def __init__(self, fail: Callable[[str], None]) -> None:
        """Start with an empty queue.

        Args:
            fail: reports to the other ranks why this one skips all later collectives.
        """
        self._fail = fail
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # held by the collective that runs
        self._queue: deque[tuple[Work, Run]] = deque()
        self._unfinished = 0
        self._calls_back: int | None = None  # the thread that has the turn for callbacks
        self._closed = ""
        # The error after which the ranks are out of step.
        self._broken: BaseException | None = None
        self._thread: ProgressThread | None = None

    def run(self, work: Work, do: Run, waits: bool) -> None:
        """Run `do` now or later, and then settle `work`.

        Raises:
            UsageError: the group is closed.
        """
        work.about_to_wait = self._give_turn_away
        with self._lock:
            if self._closed:
                raise UsageError(f"{work.name}: {self._closed}")
            from_callback = self._calls_back == threading.get_ident()
            here = from_callback or (waits and not self._unfinished)
            if not here:
                self._queue.append((work, do))
                self._submit(1)
            elif not from_callback:
                self._turn.acquire()
            self._unfinished += not from_callback
        if from_callback:
            work.settle(self._try(work, do))
        elif here:
            self._run(work, do)

    def close(self, why: str, within_s: float) -> bool:
        """Refuse all later collectives, for this reason; returns whether none is running."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._closed = self._closed or why
        if thread is not None:
            thread.close()
            return thread.join(within_s)
        done = self._turn.acquire(timeout=within_s)
        if done:
            self._turn.release()
        return done

    def _submit(self, count: int) -> None:
        if self._thread is None:
            self._thread = ProgressThread()
        for _ in range(count):
            self._thread.submit(self._run_next)

    def _run_next(self) -> None:
        self._turn.acquire()
        if self._queue:
            self._run(*self._queue.popleft())
        else:  # the thread that passed the turn on, or its successor, has run it
            self._turn.release()

    def _run(self, work: Work, do: Run) -> None:
        error = self._try(work, do)
        own = self._calls_back = threading.get_ident()
        work.settle(error)
        with self._lock:
            if self._calls_back == own:
                self._end_turn()

    def _try(self, work: Work, do: Run) -> BaseException | None:
        """Run a collective, unless the ranks are out of step after an error; returns its error."""
        if self._broken is not None:
            return self._broken
        try:
            do()
        except AgreedError as error:
            return error
        except BaseException as error:  # raised in the thread that waits
            said = f"{work.name} failed on this rank: {one_line(error)}"
            self._broken = error if isinstance(error, HvdExtError) else HvdExtError(said)
            self._fail(one_line(error))
            return error
        return None

    def _give_turn_away(self) -> None:
        """Let another thread run the queue if this one is in a callback and is about to wait."""
        with self._lock:
            if self._calls_back == threading.get_ident() and self._thread is not None:
                self._thread.close()
                self._thread = None
                self._submit(len(self._queue))
                self._end_turn()

    def _end_turn(self) -> None:
        self._calls_back = None
        self._unfinished -= 1
        self._turn.release()
