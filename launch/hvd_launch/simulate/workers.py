"""Several simulations at once, on all cores; none outlives an error or Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

from hvd_ext.system.process import descendants
from hvd_launch.simulate import trace

T = TypeVar("T")
_AGAIN_S = 0.1
_PROGRAMS = ("smpirun", "smpimain")


def run_all(jobs: Sequence[Callable[[], T]], done: Callable[[T], object]) -> list[T]:
    """Run the jobs, the first ones first, and call `done` in this thread as each one ends.

    Returns:
        Their results, in the order of the jobs.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running: list[Future[T]] = [pool.submit(job) for job in jobs]
        try:
            for finished in as_completed(running):
                done(finished.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            trace.cancelled.set()
            # A thread that has just written its trace may still start a program.
            while not all(one.done() for one in running):
                _end_simulations()
                time.sleep(_AGAIN_S)
            raise
        finally:
            trace.cancelled.clear()
    return [finished.result() for finished in running]


def _end_simulations() -> None:
    """A thread waits for each program until it ends, and cleans up."""
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() in _PROGRAMS:
                os.kill(pid, signal.SIGKILL)
