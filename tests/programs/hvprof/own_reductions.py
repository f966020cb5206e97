"""Reduces over communicators of hvd_ext's name, and reports it, as hvd_ext does."""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

from hvd_ext.events import CommEvent, cache_lookup, emit, region, tuning

if __name__ == "__main__":
    world, buffer = MPI.COMM_WORLD, np.ones(1000, np.float32)
    own = world.Dup()
    own.Set_name("hvd_ext world")
    for _ in range(3):
        own.Allreduce(MPI.IN_PLACE, buffer)
        emit(CommEvent("allreduce", "hierarchical", 4000, own.size, 0.0, 0.25, 0.5))
    with tuning():
        own.Allreduce(MPI.IN_PLACE, buffer)
        world.Allreduce(MPI.IN_PLACE, buffer)
        emit(CommEvent("allreduce", "hierarchical", 8000, own.size, 0.0, 0.25, 0.5))
    with region("exposed", kind="communication"):
        with region("synchronize", kind="communication"):
            time.sleep(0.01)
        with region("input", kind="io"):
            pass
    for hit in (False, False, True):
        cache_lookup("hvd_ext, CUDA IPC handles", hit=hit)
    cache_lookup("another", hit=True)
    own.Set_name("someone else's")
    own.Allreduce(MPI.IN_PLACE, buffer)
    own.Set_name("hvd_ext world")
    own.Free()
    # The handle of the one that was freed is likely given out again.
    again = world.Dup()
    again.Allreduce(MPI.IN_PLACE, buffer)
    again.Free()
