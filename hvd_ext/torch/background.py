"""Horovod's background thread, out of the way of those that compute.

It wakes every cycle (1 ms by default) and meets the other ranks' threads in an
MPI_Allreduce, in which it spins until the last of them has got a core. Where every
core computes, that time is taken from training, though no gradient goes by Horovod
any more: of 2 ranks on 2 cores, each of which computed with one thread, the background
threads took a third of either core.

So two things are done. Open MPI is told to give the core away between two looks while it
waits (mpi_yield_when_idle, which it does by itself only where it knows of more ranks than
slots), and the thread gets the lowest priority: it still runs at once when a core is
free, as one is while a script waits for an exchange of its own. The cycle time stays what
the user chose. The priority of ranks that share cores is left alone: there one rank's
waiting would keep another one's thread from the core that it is waited for on.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import horovod.torch as horovod

log = logging.getLogger("hvd_ext")

_horovods_init = horovod.init
_thread_id: int | None = None


def init(*arguments: Any, **named: Any) -> Any:
    """Start Horovod, as `horovod.torch.init` does, so that its waiting costs others little."""
    global _thread_id
    # Read as Open MPI starts, in Horovod's init; others do not know it.
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    # Or a script that is started without a launcher would look for Open MPI's daemon, in vain
    # where that is not on the path it was built with.
    os.environ.setdefault("OMPI_MCA_ess_singleton_isolated", "1")
    before = _threads()
    result = _horovods_init(*arguments, **named)
    started = _threads() - before
    if started:
        # The background thread is the first: it starts MPI, which starts the others.
        _thread_id = min(started)
    return result


def yield_to_training() -> None:
    """Have Horovod's background thread run on cores that nothing else wants.

    Does nothing where the node has more ranks than this one may use cores.
    """
    if horovod.local_size() <= len(os.sched_getaffinity(0)):
        set_niceness(19)


def set_niceness(niceness: int) -> bool:
    """Set the background thread's niceness, -20 to 19; returns whether it could be set.

    Lowering it again takes a privilege that most users do not have.
    """
    if _thread_id is None:
        return False
    try:
        os.setpriority(os.PRIO_PROCESS, _thread_id, niceness)
    except OSError as error:
        log.info("hvd_ext: Horovod's background thread keeps its priority: %s", error)
        return False
    return True


def _threads() -> set[int]:
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}
