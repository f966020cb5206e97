"""Keeps Horovod's background thread from taking cores that training needs.

It wakes every cycle (1 ms by default) and synchronizes with the other ranks' threads by an
MPI_Allreduce, in which it spins until the last of them gets a core. If every core is computing,
training loses that time, although no gradient goes through Horovod: with 2 ranks on 2 cores, one
computing thread each, the background threads took a third of both cores.

There are two remedies. Open MPI and Intel MPI yield the core while they poll (Open MPI sets
mpi_yield_when_idle itself only if it sees more ranks than slots). And the thread is scheduled as
idle (SCHED_IDLE): it still runs at once on a free core, such as that of a script that waits for its
own exchange. With only the lowest niceness it took 5 % of a ResNet-50 step. The thread is idle from
hvd.init() on, because a program may exchange gradients without Horovod and without this optimizer,
for example by torch.distributed. Horovod's own optimizer restores the thread's priority, if that is
allowed. With a GPU the priority stays until an arena has the gradients, because the thread drives
NCCL. The cycle time stays as the user set it. If ranks share cores, the priority stays, because a
waiting rank could keep the thread that it waits for off their core.
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
    """Set the variables that MPI libraries read at start-up, and note Horovod's thread."""
    global _thread_id
    # Each library ignores the others' variables.
    for library in mpi_libraries.LIBRARIES.values():
        if library.yields:
            os.environ.setdefault(*library.yields)
    # Without a launcher, Open MPI would look for its daemon, and fail if that is not on the path
    # that it was built with.
    os.environ.setdefault("OMPI_MCA_ess_singleton_isolated", "1")
    before = _threads()
    yield
    started = _threads() - before
    if started and horovods.INSTALLED:
        # The background thread is the first: it starts MPI, which starts the others.
        _thread_id = min(started)


def lower_thread_priority() -> None:
    """Let all other threads run before Horovod's background thread.

    Does nothing if the node has more ranks than cores that this rank may use.
    """
    if horovods.local_size() <= len(os.sched_getaffinity(0)):
        set_idle(True)


def give_way_from_start() -> None:
    """Lower the thread's priority before it is known what exchanges gradients.

    Does nothing if it will probably be Horovod: on GPUs, over Gloo, or in an elastic job.
    """
    exchanges_here = horovods.size() > 1 and horovods.mpi_enabled()
    likely_horovods = torch.cuda.is_available() or os.environ.get("HOROVOD_ELASTIC") == "1"
    if exchanges_here and not likely_horovods:
        lower_thread_priority()


def set_idle(idle: bool) -> bool:
    """Schedule the background thread as idle or normal; returns whether that was possible.

    Restoring the priority needs a privilege that most users do not have.
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
