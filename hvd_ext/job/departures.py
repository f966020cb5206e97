"""Announcements of ranks that have left, for ranks that may be waiting for them.

Ranks that end together announce nothing. A rank that waits for the others at its end announces
after a while that it has left, so that an exchange in which they wait for it fails then, and not at
the stall limit.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from hvd_ext.job.abandoned import abandon
from hvd_ext.job.waiting import until

if TYPE_CHECKING:
    from mpi4py import MPI

    Array = np.ndarray[Any, np.dtype[np.int64]]

# How long a rank waits at its end for the others before it announces that it has left.
_ANNOUNCE_AFTER_S = 1.0
_TAG = 24303
# An announcement has the rank's progress for this number of watchdogs; for others it has none.
_MOST_WATCHDOGS = 64

_open: WeakSet[Departures] = WeakSet()


class Departures:
    """The ranks of a communicator that have announced that they have left."""

    def __init__(self, comm: MPI.Comm) -> None:
        """Listen on one tag of `comm`; ranks that MPI did not start announce nothing."""
        self._comm = comm
        self._found: dict[int, Array] = {}
        self._watchdogs, self._entered = 0, np.zeros(_MOST_WATCHDOGS, np.int64)
        self._lock = threading.Lock()
        self._announced = not hasattr(comm, "Irecv") or comm.size == 1
        self._request: MPI.Request | None = None
        if not self._announced:
            _open.add(self)
            _end_before_mpi()
            self._listen()

    def _listen(self) -> None:
        # Not by probes: when another rank ends, MPI may end here at any time, and a probe would
        # crash.
        from mpi4py import MPI

        self._said = np.empty(1 + _MOST_WATCHDOGS, np.int64)
        self._request = self._comm.Irecv(self._said, MPI.ANY_SOURCE, _TAG)
        abandon([self._request], self._said)  # the receive may stay posted until MPI's end

    def ranks(self) -> set[int]:
        """Return the ranks that have left by now; their earlier messages have arrived, too."""
        with self._lock:
            while self._request is not None and self._request.Test():
                self._found[int(self._said[0])] = self._said[1:]
                self._listen()
            return set(self._found)

    def add_watchdog(self) -> int:
        """Number a new watchdog, alike on every rank; all ranks make them in one order."""
        self._watchdogs += 1
        return self._watchdogs - 1

    def enter(self, watchdog: int, exchanges: int) -> None:
        """Note how many exchanges this rank has entered."""
        if watchdog < _MOST_WATCHDOGS:
            self._entered[watchdog] = exchanges

    def before(self, watchdog: int, exchanges: int) -> set[int]:
        """Return the ranks that left before they entered this many exchanges.

        A rank that has entered this exchange has done its part of it, or it would not have left.
        """
        ranks = self.ranks()
        if watchdog >= _MOST_WATCHDOGS:
            return set()
        return {rank for rank in ranks if self._found[rank][watchdog] < exchanges}

    def announce(self) -> None:
        """Report to the other ranks that this one has left."""
        with self._lock:
            if self._announced:
                return
            self._announced = True
            own = np.concatenate([[self._comm.rank], self._entered])
            others = [rank for rank in range(self._comm.size) if rank != self._comm.rank]
            abandon([self._comm.Isend(own, rank, _TAG) for rank in others], own)

    def end(self) -> None:
        """Use MPI no more, because it ends."""
        self.stop_listening()
        with self._lock:
            self._announced = True

    def close(self) -> None:
        """Stop before the communicator is freed."""
        _open.discard(self)
        self.stop_listening()

    def stop_listening(self) -> None:
        """Cancel the posted receives, because MPICH reports them as an error at its end."""
        from mpi4py import MPI

        with self._lock:
            request, self._request = self._request, None
            if request is not None and not MPI.Is_finalized():
                request.Cancel()
                request.Wait()


@functools.cache
def _end_before_mpi() -> None:
    """End as MPI_Finalize begins, because Horovod's thread calls it whatever other threads do."""
    from mpi4py import MPI

    def end(*_: object) -> None:
        for departures in list(_open):
            departures.end()

    # The first thing that MPI ends is this attribute, with MPI still in use.
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=end), None)


def met_in_time(met: Callable[[], bool], within_s: float, announce: Callable[[], None]) -> bool:
    """Wait until this rank has met the others at its end; announce after a while that it has left.

    Args:
        met: whether they have met.
        within_s: how long to wait for them, more than a second.
        announce: announces that this rank has left.
    """
    stop_listening()  # this rank no longer waits for messages
    if until(met, _ANNOUNCE_AFTER_S):
        return True
    announce()
    return until(met, within_s - _ANNOUNCE_AFTER_S)


def stop_listening() -> None:
    """Stop listening in every communicator that is open in this process."""
    for departures in list(_open):
        departures.stop_listening()


def announce_all() -> None:
    """Announce it to the ranks of every communicator that is open in this process."""
    for departures in list(_open):
        departures.announce()
