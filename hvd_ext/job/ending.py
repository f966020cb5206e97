"""The end of a program; if it failed its job ends too, as other ranks would wait for it."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from hvd_ext.job.abandoned import abandon
from hvd_ext.job.departures import announce_all, met_in_time, stop_listening

# How long the end waits for what was started, and for ranks that come to it later.
LATE_AFTER_S = 5.0
_at_exit: dict[Callable[[bool], object], Callable[[], None]] = {}


def at_exit(end: Callable[[bool], object]) -> None:
    """Have `end` called at the program's end, the latest first, and before MPI ends.

    A forked child does not call it: it has nothing that uses MPI.

    Args:
        end: takes whether an exception ends the program.
    """
    pid = os.getpid()

    def run() -> None:
        if os.getpid() == pid:
            end(_error() is not None)

    # mpi4py has registered MPI's end with the interpreter itself, and Horovod its own earlier.
    _at_exit[end] = atexit.register(run)


@functools.cache
def listen_until_the_end() -> None:
    """Have no rank listen for departures when MPI ends. A failed one leaves MPI alone."""
    at_exit(lambda failed: None if failed else stop_listening())


def not_at_exit(end: Callable[[bool], object]) -> None:
    """Have `end` not be called."""
    if run := _at_exit.pop(end, None):
        atexit.unregister(run)


def _error() -> BaseException | None:
    """The exception that ends the program; an interactive session outlives one."""
    return None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)


def meet_or_end_job() -> None:
    """Wait for all ranks at the program's end; after an error, end those that do not come.

    MPI's own end would wait for them, and they for this rank.
    """
    error = _error()
    if _all_met(LATE_AFTER_S) or error is None:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    abort(getattr(error, "exit_code", 1))


def abort(code: int) -> NoReturn:
    """End every rank of the job at once; without MPI this one, whose launcher ends the others."""
    mpi = _mpi()
    if mpi is not None:
        mpi.COMM_WORLD.Abort(code)
    os._exit(code)


def _mpi() -> Any:
    """mpi4py's MPI, if this process uses it: importing it would start it."""
    return sys.modules.get("mpi4py.MPI")


def _all_met(within_s: float) -> bool:
    MPI = _mpi()
    if MPI is None or MPI.Is_finalized() or MPI.COMM_WORLD.size == 1:
        return True
    request = MPI.COMM_WORLD.Ibarrier()
    met = met_in_time(request.Test, within_s, announce_all)
    if not met:
        abandon([request])
    return met
