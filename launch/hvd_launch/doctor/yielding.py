"""Speed of ranks while another of their threads waits in MPI, as stock Horovod's does."""

from __future__ import annotations

import hashlib
import threading
import time
from array import array
from typing import Any

# Horovod's thread meets the other ranks once in a cycle.
_CYCLE_S = 0.001
_BLOCK = bytes(1 << 18)


def computed_per_s(comm: Any, seconds: float, meets: bool = True) -> float:
    """Steps/s of a computation, over all ranks. A collective.

    Args:
        comm: an mpi4py communicator.
        seconds: how long to compute.
        meets: a thread of each rank meets the others in an allreduce of 8 bytes each millisecond.
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
    """Meet the other ranks each cycle, until all of them are done.

    A cycle is counted from its beginning, as Horovod does, so that ranks that begin it apart stay
    apart, and the first waits in MPI each time. Here they are as far apart as by chance on average.
    """
    from mpi4py import MPI

    ready = array("d", [0])
    begins_s = time.perf_counter() + _CYCLE_S * comm.rank / comm.size
    while ready[0] < comm.size:
        time.sleep(max(0.0, begins_s - time.perf_counter()))
        begins_s = max(begins_s, time.perf_counter()) + _CYCLE_S
        ready[0] = done.is_set()
        comm.Allreduce(MPI.IN_PLACE, [ready, MPI.DOUBLE])
