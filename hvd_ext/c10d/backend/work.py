"""The handle of a collective or a message, and the order in which a group runs them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from hvd_ext.c10d.torch_internals import WorkBase
from hvd_ext.errors import HvdExtError, StallError, UsageError
from hvd_ext.events import region
from hvd_ext.job.progress_thread import ProgressThread

Run = Callable[[], object]


class Work(WorkBase):
    """One operation of a process group."""

    def __init__(self, name: str, result: Sequence[torch.Tensor]) -> None:
        """Note what is under way.

        Args:
            name: as errors say it, such as "all_reduce()".
            result: what the future will hold.
        """
        super().__init__()
        self.name = name
        self._tensors = list(result)
        self._future: Any = torch.futures.Future()
        self._over = threading.Event()
        self._error: BaseException | None = None
        # The error for a wait of so many seconds that was in vain.
        self.late: Callable[[str, float], HvdExtError] = lambda name, s: HvdExtError(
            f"{name} did not end within {s:g} s"
        )

    def settle(self, error: BaseException | None = None) -> None:
        """Have it be over, and wake whoever waits."""
        self._error = error
        self._over.set()
        if error is None:
            self._future.set_result(self._tensors)
        elif isinstance(error, Exception):
            self._future.set_exception(error)
        else:  # Ctrl-C, for which a future has no place
            self._future.set_exception(HvdExtError(f"{self.name} was interrupted"))

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is over; raises what it raised.

        Args:
            timeout: 0 or None: as long as the group allows.

        Raises:
            StallError: it is not over in time; names the ranks that are missing, if known.
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
        return self._over.wait(limit_s)

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> Any:
        return self._future

    def is_completed(self) -> bool:
        return self._over.is_set()

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

    Where the caller waits anyway and nothing is queued, the collective runs on the calling
    thread: handing it over takes longer than a short message does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # held by what runs
        self._unfinished = 0
        self._closed = ""
        # After this the ranks are out of step.
        self._broken: BaseException | None = None
        self._thread: ProgressThread | None = None

    def run(self, work: Work, do: Run, waits: bool) -> None:
        """Run `do` now or later, and settle `work` after it.

        Raises:
            UsageError: the turns are closed.
        """
        with self._lock:
            if self._closed:
                raise UsageError(f"{work.name}: {self._closed}")
            here = waits and not self._unfinished
            self._unfinished += 1
            if here:
                self._turn.acquire()
            else:
                if self._thread is None:
                    self._thread = ProgressThread()
                self._thread.submit(lambda: self._later(work, do))
        if here:
            self._run(work, do)

    def close(self, why: str, within_s: float) -> bool:
        """Refuse what comes from now on, for this reason; returns whether nothing runs any more."""
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

    def _later(self, work: Work, do: Run) -> None:
        self._turn.acquire()
        self._run(work, do)

    def _run(self, work: Work, do: Run) -> None:
        error = self._broken
        try:
            if error is None:
                do()
        except BaseException as raised:  # handed to whoever waits
            error = raised
            if isinstance(raised, StallError) or not isinstance(raised, Exception):
                self._broken = raised
        self._turn.release()
        with self._lock:
            self._unfinished -= 1
        # Last: what is called then may begin another collective.
        work.settle(error)
