"""From the first exchange to the program's end: what uses MPI ends before MPI does."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
import weakref
from typing import Protocol

from hvd_ext.job.abandoned import abandon
from hvd_ext.job.closing import wait_until_closed

# How long the program's end waits for exchanges that were started, and for other ranks.
_LATE_AFTER_S = 5.0
_POLL_S = 0.005


class Closable(Protocol):
    """An exchange, as far as its end goes."""

    def close(self) -> None: ...


_exchanges: weakref.WeakSet[Closable] = weakref.WeakSet()


def note(exchange: Closable) -> None:
    """Have an exchange end before the program does."""
    _exchanges.add(exchange)


@functools.cache
def watch() -> None:
    """Have the program's end wait for what was started, and an error end the other ranks."""
    # Runs before MPI's end, which mpi4py has registered with the interpreter itself.
    atexit.register(_at_exit, os.getpid())


def _at_exit(pid: int) -> None:
    """End what uses MPI; a forked child has nothing that does."""
    if os.getpid() != pid:
        return
    for exchange in list(_exchanges):
        exchange.close()
    wait_until_closed(_LATE_AFTER_S)
    # In an interactive session an error ends one command, and its traceback stays.
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    if not _met() and error is not None:
        _end_job(error)


def _met() -> bool:
    """Whether all ranks of the job are here before long."""
    from mpi4py import MPI

    if MPI.Is_finalized() or MPI.COMM_WORLD.size == 1:
        return True
    request = MPI.COMM_WORLD.Ibarrier()
    deadline = time.monotonic() + _LATE_AFTER_S
    while not request.Test():
        if time.monotonic() > deadline:
            abandon([request])
            return False
        time.sleep(_POLL_S)
    return True


def _end_job(error: BaseException) -> None:
    """End the other ranks, which wait for this one: MPI's end would wait for them."""
    from mpi4py import MPI

    sys.stdout.flush()
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(getattr(error, "exit_code", 1))
