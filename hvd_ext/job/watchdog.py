"""Ends a job that is stuck between nodes, naming the ranks that did not come.

A thread blocked in MPI cannot ask who is missing, so each rank has a second one that
can: it answers others' questions about how far this rank has come, and asks its own
once an exchange has lasted too long. Within a node the window's counters tell.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hvd_ext.errors import StallError

if TYPE_CHECKING:
    from hvd_ext.job.topology import Topology

_ASK_TAG, _ANSWER_TAG = 1, 2
_LOOK_EVERY_S = 0.5
_ANSWER_WITHIN_S = 5.0
# What an error may take to end the job by itself: a traceback, the program's own
# clean-up, Horovod's shutdown. A rank that hangs in those would hang the job.
_END_WITHIN_S = 10.0

log = logging.getLogger("hvd_ext")


class Watchdog:
    """Watches this rank's exchanges; one per arena, collective to make."""

    def __init__(self, topology: Topology, timeout_s: float) -> None:
        """Start watching over a private copy of the world communicator."""
        self._topology = topology
        self._timeout_s = timeout_s
        self._comm = topology.world.Dup()
        self._comm.Set_name("hvd_ext.job.watchdog")
        self._entered = 0
        self._since: float | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hvd_ext watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Count an exchange, and have it end within the time allowed."""
        self._entered += 1
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    def close(self) -> None:
        """Stop watching."""
        self._closing.set()
        # The collector may call this from any thread.
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _watch(self) -> None:
        while not self._closing.wait(_LOOK_EVERY_S):
            self._answer()
            since = self._since
            if since is not None and time.monotonic() - since > self._timeout_s:
                missing = self._ask()
                if self._since == since:
                    end_job(StallError(stall_sentence(self._topology, missing, self._timeout_s)), 0)

    def _answer(self) -> None:
        from mpi4py import MPI

        status = MPI.Status()
        while self._comm.iprobe(tag=_ASK_TAG, status=status):
            self._comm.recv(source=status.source, tag=_ASK_TAG)
            # Who waits itself, in an earlier exchange perhaps, is not the one to look for.
            there = math.inf if self._since is not None else self._entered
            self._comm.isend(there, dest=status.source, tag=_ANSWER_TAG)

    def _ask(self) -> list[int]:
        others = [rank for rank in range(self._comm.size) if rank != self._comm.rank]
        asked = [self._comm.isend(None, dest=rank, tag=_ASK_TAG) for rank in others]
        answers = {rank: self._comm.irecv(source=rank, tag=_ANSWER_TAG) for rank in others}
        deadline = time.monotonic() + _ANSWER_WITHIN_S
        behind = set(others)
        while answers and time.monotonic() < deadline:
            self._answer()
            for rank in list(answers):
                done, there = answers[rank].test()
                if done:
                    del answers[rank]
                    if (there or 0) >= self._entered:
                        behind.discard(rank)
            time.sleep(0.01)
        del asked
        return sorted(behind)


def stall_sentence(topology: Topology, missing: list[int], after_s: float) -> str:
    """Say who did not come, and what to do."""
    if not missing:
        return (
            f"an exchange took more than {after_s:g} s though every rank came to it: "
            "the network between the nodes is stuck, or HVD_EXT_STALL_TIMEOUT_S is too low"
        )
    names = ", ".join(topology.name(rank) for rank in missing)
    return (
        f"{names} did not come to a gradient exchange within {after_s:g} s: look for its last "
        "lines above; if it was only slow, raise HVD_EXT_STALL_TIMEOUT_S"
    )


def end_job(error: StallError, within_s: float = _END_WITHIN_S) -> None:
    """End every rank of the job after `within_s`, unless this process ended by then."""

    def abort() -> None:
        from mpi4py import MPI

        print(f"hvd_ext: error: {error}", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Abort(error.exit_code)

    if within_s <= 0:
        abort()
    timer = threading.Timer(within_s, abort)
    timer.daemon = True
    timer.start()
