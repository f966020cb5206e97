"""From the first exchange to the program's end: exchanges end before MPI does."""

from __future__ import annotations

import functools
import weakref
from typing import Protocol

from hvd_ext.job.closing import wait_until_closed
from hvd_ext.job.ending import LATE_AFTER_S, at_exit, meet_or_end_job


class Closable(Protocol):
    """An exchange, seen from its end."""

    def close(self) -> None: ...


_exchanges: weakref.WeakSet[Closable] = weakref.WeakSet()


def note(exchange: Closable) -> None:
    """Make an exchange end before the program does."""
    _exchanges.add(exchange)


@functools.cache
def watch() -> None:
    """Make the program's end wait for started exchanges, and an error end the other ranks."""
    at_exit(_at_exit)


def _at_exit(failed: bool) -> None:
    for exchange in list(_exchanges):
        exchange.close()
    wait_until_closed(LATE_AFTER_S)
    meet_or_end_job()
