"""The end of a program that failed: its job ends too, as other ranks would wait for it."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, NoReturn

from hvd_ext.job.abandoned import abandon

_POLL_S = 0.005


def meet_or_end_job(within_s: float) -> None:
    """Wait for all ranks at the program's end; after an error, end those that do not come.

    MPI's own end would wait for them, and they for this rank.
    """
    # In an interactive session an error ends one command, and its traceback stays.
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    if _all_met(within_s) or error is None:
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
    deadline = time.monotonic() + within_s
    while not request.Test():
        if time.monotonic() > deadline:
            abandon([request])
            return False
        time.sleep(_POLL_S)
    return True
