"""The end of a program; if it fails, its job ends, because other ranks would wait for it."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from hvd_ext.job.abandoned import abandon
from hvd_ext.job.departures import announce_all, met_in_time, stop_listening

# How long the end waits for started exchanges, and for ranks that reach it later.
LATE_AFTER_S = 5.0
_at_exit: dict[Callable[[bool], object], Callable[[], None]] = {}


def at_exit(end: Callable[[bool], object]) -> None:
    """Call `end` at the program's end, the latest one first, and before MPI ends.

    A forked child does not call it, because it does not use MPI.

    Args:
        end: takes whether an exception ends the program.
    """
    pid = os.getpid()

    def run() -> None:
        if os.getpid() == pid:
            end(_error() is not None)

    # mpi4py has registered MPI's end with the interpreter, and Horovod has registered its end
    # earlier.
    _at_exit[end] = atexit.register(run)


@functools.cache
def listen_until_the_end() -> None:
    """Stop listening for departures before MPI ends. A failed rank does not touch MPI."""
    at_exit(lambda failed: None if failed else stop_listening())


def not_at_exit(end: Callable[[bool], object]) -> None:
    """Withdraw `end`."""
    if run := _at_exit.pop(end, None):
        atexit.unregister(run)


def _error() -> BaseException | None:
    """Return the exception that ends the program; an interactive session survives exceptions."""
    return None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)


def meet_or_end_job() -> None:
    """Wait for all ranks at the program's end; after an error, end those that do not arrive.

    MPI's own end would wait for them, and they would wait for this rank.
    """
    error = _error()
    if _all_met(LATE_AFTER_S) or error is None:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    abort(getattr(error, "exit_code", 1))


def abort(code: int) -> NoReturn:
    """End every rank of the job at once; without MPI only this one, and its launcher the others."""
    mpi = _mpi()
    if mpi is not None:
        mpi.COMM_WORLD.Abort(code)
    os._exit(code)


def _mpi() -> Any:
    """Return mpi4py's MPI if this process uses it; importing it would start it."""
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
