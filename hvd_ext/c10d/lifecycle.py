"""From the first exchange to the program's end: what uses MPI ends before MPI does."""

from __future__ import annotations

import atexit
import functools
import os
import weakref
from typing import Protocol

from hvd_ext.job.closing import wait_until_closed
from hvd_ext.job.ending import meet_or_end_job

# How long the program's end waits for exchanges that were started, and for other ranks.
_LATE_AFTER_S = 5.0


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
    meet_or_end_job(_LATE_AFTER_S)
