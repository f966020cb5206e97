"""Keeps Horovod's background thread from taking cores that training needs.

It wakes every cycle (1 ms by default) and meets the other ranks' threads in an
MPI_Allreduce, in which it spins until the last of them has got a core. Where every
core computes, training loses that time, though no gradient goes through Horovod any
more: with 2 ranks on 2 cores, one computing thread each, the background threads took a
third of both cores.

Hence two measures. Open MPI and Intel MPI yield the core while they poll (Open MPI sets
mpi_yield_when_idle itself only where it knows of more ranks than slots), and the thread is
scheduled as idle (SCHED_IDLE): it still runs at once on a free core, such as that of a script
that waits for its own exchange. With the lowest niceness alone it took 5 % of a
ResNet-50 step.
It gives way from hvd.init() on: a program may exchange gradients without Horovod and without this
optimizer, as by torch.distributed. Horovod's own optimizer takes the thread back, where that is
allowed. With a GPU it stays as it is until an arena has the gradients, because it drives NCCL.
The cycle time stays as the user set it. Where ranks share cores the thread is left alone: a
waiting rank could otherwise keep the thread it waits for off their core.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from hvd_ext.system import mpi_libraries
from hvd_ext.torch import horovods

log = logging.getLogger("hvd_ext")

_thread_id: int | None = None


@contextmanager
def noting_thread() -> Iterator[None]:
    """Set what MPI libraries read at start-up, and note the thread that Horovod starts."""
    global _thread_id
    # Each library ignores the others' variables.
    for library in mpi_libraries.LIBRARIES.values():
        if library.yields:
            os.environ.setdefault(*library.yields)
    # Without a launcher, Open MPI would look for its daemon, in vain where that is not on the
    # path it was built with.
    os.environ.setdefault("OMPI_MCA_ess_singleton_isolated", "1")
    before = _threads()
    yield
    started = _threads() - before
    if started and horovods.INSTALLED:
        # The background thread is the first: it starts MPI, which starts the others.
        _thread_id = min(started)


def lower_thread_priority() -> None:
    """Let everything else run before Horovod's background thread.

    Does nothing where the node has more ranks than this one may use cores.
    """
    if horovods.local_size() <= len(os.sched_getaffinity(0)):
        set_idle(True)


def give_way_from_start() -> None:
    """Lower the thread's priority before it is known who will exchange gradients.

    Does nothing where they are likely Horovod's: on GPUs, over Gloo, or in an elastic job.
    """
    exchanges_here = horovods.size() > 1 and horovods.mpi_enabled()
    likely_horovods = torch.cuda.is_available() or os.environ.get("HOROVOD_ELASTIC") == "1"
    if exchanges_here and not likely_horovods:
        lower_thread_priority()


def set_idle(idle: bool) -> bool:
    """Schedule the background thread as idle, or as others; returns whether that could be done.

    The way back takes a privilege that most users do not have.
    """
    if _thread_id is None:
        return False
    try:
        policy = os.SCHED_IDLE if idle else os.SCHED_OTHER
        os.sched_setscheduler(_thread_id, policy, os.sched_param(0))
    except OSError as error:
        log.info("hvd_ext: Horovod's background thread keeps its priority: %s", error)
        return False
    return True


def _threads() -> set[int]:
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}
