"""Rank 0 waits in a planned allreduce for rank 1, which is late, and gets SIGUSR1. Argument: how.

in_place, short, long: which way the buffer is reduced. Rank 1 comes once rank 0 has handled
the signal, so that the job ends only if the handler does not wait for it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from hvd_ext.allreduce.persistent import PersistentAllreduce
from hvd_ext.job.topology import discover

how, text = sys.argv[1:]
handled = Path(text)
topology = discover(MPI.COMM_WORLD, 60)
rank = topology.world.rank
if how == "in_place":
    planned = PersistentAllreduce.in_arena(topology, 5000, "float64", algorithm="shared_memory")
else:
    count = 10 if how == "short" else 500_000
    planned = PersistentAllreduce(topology, np.empty(count), algorithm="shared_memory")
for _ in range(3):  # the ways have two places, used in turn
    planned.buffer[:] = np.arange(len(planned.buffer)) + rank
    topology.world.Barrier()
    if rank == 0:
        signal.signal(signal.SIGUSR1, lambda *_: handled.touch())
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    else:
        deadline_s = time.monotonic() + 60
        while not handled.exists():
            if time.monotonic() > deadline_s:
                sys.exit("the handler waits for this rank")
            time.sleep(0.01)
        handled.unlink()
    planned()
    assert (planned.buffer == 2 * np.arange(len(planned.buffer)) + 1).all()
topology.close()
print("handled, and reduced")
