"""The speed of ranks while another of their threads waits in MPI, as stock Horovod's does."""

from __future__ import annotations

import hashlib
import threading
import time
from array import array
from typing import Any

# The period in which Horovod's threads synchronize.
_CYCLE_S = 0.001
_BLOCK = bytes(1 << 18)


def computed_per_s(comm: Any, seconds: float, meets: bool = True) -> float:
    """Measure steps/s of a computation, over all ranks. A collective.

    Args:
        comm: an mpi4py communicator.
        seconds: how long to compute.
        meets: whether a thread of each rank synchronizes with the others every millisecond, in an
            allreduce of 8 bytes.
    """
    done = threading.Event()
    beside = threading.Thread(target=_meet, args=(comm.Dup(), done))
    comm.Barrier()
    if meets:
        beside.start()
    began_s, steps = time.perf_counter(), 0
    while (took_s := time.perf_counter() - began_s) < seconds:
        hashlib.sha256(_BLOCK)  # releases the GIL
        steps += 1
    done.set()
    if meets:
        beside.join()
    total: float = comm.allreduce(steps / took_s)
    return total


def _meet(comm: Any, done: threading.Event) -> None:
    """Synchronize with the other ranks in each cycle, until all of them are done.

    A cycle is counted from its beginning, as in Horovod, so ranks that begin it at different times
    keep that difference, and the first one waits in MPI each time. Here the difference is the
    average of random ones.
    """
    from mpi4py import MPI

    ready = array("d", [0])
    begins_s = time.perf_counter() + _CYCLE_S * comm.rank / comm.size
    while ready[0] < comm.size:
        time.sleep(max(0.0, begins_s - time.perf_counter()))
        begins_s = max(begins_s, time.perf_counter()) + _CYCLE_S
        ready[0] = done.is_set()
        comm.Allreduce(MPI.IN_PLACE, [ready, MPI.DOUBLE])
