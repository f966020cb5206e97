"""From hvd.init() to hvd.shutdown(): Horovod's own, and what hvd_ext runs beside it."""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import sys
import threading
import time
import weakref
from concurrent.futures import Future
from typing import Any, Protocol

import horovod.torch as horovod
import torch
from horovod.common.exceptions import HorovodInternalError
from horovod.torch import mpi_lib_v2

from hvd_ext import memory, settings
from hvd_ext.errors import UsageError
from hvd_ext.job.closing import wait_until_closed
from hvd_ext.job.topology import Topology, discover
from hvd_ext.torch.job import background
from hvd_ext.torch.job.begun_steps import SHARDED_JOIN, BegunSteps
from hvd_ext.torch.sync.rounds import Rounds
from hvd_ext.variables import misspelt

# What shutdown allows for exchanges that were started and never waited for, and for ranks that
# come to it later.
_LATE_AFTER_S = 5.0
_POLL_S = 0.0005

log = logging.getLogger("hvd_ext")

_horovods_init, _horovods_join = horovod.init, horovod.join
_horovods_shutdown = horovod.shutdown


class Joinable(Protocol):
    """An optimizer's gradients, as join and shutdown need them; as of Reducer."""

    number: int
    can_join: bool

    def leave_step(self) -> None: ...
    def take_part(self) -> None: ...
    def close(self) -> None: ...


_topology: Topology | None = None
# The program started MPI before Horovod, which then leaves its end to the program.
_mpi_outlives_horovod = False
# None on several nodes, where a rank cannot see that others have begun a step.
_begun: BegunSteps | None = None
# By the order in which they were made, which is the same on every rank.
_reducers: weakref.WeakValueDictionary[int, Joinable] = weakref.WeakValueDictionary()
_rounds: weakref.WeakSet[Rounds] = weakref.WeakSet()
_made = 0
_sharded = False  # one of them


def init(*arguments: Any, **named: Any) -> Any:
    """Start Horovod, as `horovod.torch.init` does, so that its waiting costs others little.

    Memory that this process frees is kept from now on, unless somebody has set malloc.

    Raises:
        UsageError: MPI has ended, and cannot be started again.
    """
    global _mpi_outlives_horovod
    if not horovod.is_initialized() and _mpi_has_ended():
        raise UsageError(
            "hvd.init() after MPI has ended, which Horovod started and hvd.shutdown() ended: put "
            "`from mpi4py import MPI` before the first hvd.init(), so that MPI outlives Horovod"
        )
    if reason := memory.keep_freed_memory():
        log.info("hvd_ext: freed memory is left to malloc: %s", reason)
    mpi = sys.modules.get("mpi4py.MPI")  # importing it starts MPI
    if not horovod.is_initialized():
        _mpi_outlives_horovod = mpi is not None and mpi.Is_initialized()
    with background.noting_thread():
        result = _horovods_init(*arguments, **named)
    if horovod.rank() == 0:
        for line in misspelt(os.environ):
            log.warning("hvd_ext: %s", line)
    return result


def _mpi_has_ended() -> bool:
    """As MPI says, which Horovod's library brings along; importing mpi4py would start it."""
    ended = ctypes.c_int(0)
    library = ctypes.CDLL(mpi_lib_v2.__file__)
    if hasattr(library, "MPI_Finalized"):  # otherwise Horovod was built without MPI
        library.MPI_Finalized(ctypes.byref(ended))
    return bool(ended.value)


def topology() -> Topology:
    """This job's nodes and ranks; collective the first time.

    Raises:
        StallError: ranks did not reach this in time; names them.
    """
    global _topology
    if _topology is None:
        from mpi4py import MPI

        _topology = discover(MPI.COMM_WORLD, settings.stall_timeout_s())
        # Runs before Horovod's own, which was registered earlier and ends MPI.
        atexit.register(_at_exit, os.getpid())
    return _topology


def begun_steps() -> BegunSteps | None:
    """Where ranks say that they begin a step; collective the first time.

    Raises:
        WindowError: on every rank, if ranks of the node cannot share memory.
    """
    global _begun
    if _begun is None and topology().one_node:
        _begun = BegunSteps(topology().node)
    return _begun


def add(reducer: Joinable, rounds: Rounds | None = None) -> None:
    """Have join and shutdown know of an optimizer's gradients, and shutdown of its rounds."""
    global _made, _sharded
    if not reducer.can_join:
        _sharded = True
    reducer.number = _made
    _reducers[_made] = reducer
    if rounds is not None:
        _rounds.add(rounds)
    _made += 1


def rounds() -> list[Rounds]:
    """Of the optimizers whose nodes exchange weights."""
    return list(_rounds)


def join(device: int = -1) -> int:
    """Wait, as Horovod's join does, until every rank has called it.

    Meanwhile this rank takes part in the steps that others take, with zeros: its own
    parameters stay as they are, and their `.grad` is overwritten.

    Returns:
        The rank that joined last.

    Raises:
        UsageError: an optimizer exchanges its gradients in the arena of several nodes, or
            is sharded.
    """
    if not _made:
        return int(_horovods_join(device))
    # Decided by what is the same on every rank, not by whether the collector has taken
    # an optimizer already.
    if _begun is None:
        raise UsageError(
            "hvd.join() serves hvd_ext's DistributedOptimizer on one node only, and this job has "
            f"{topology().nodes}: give every rank as many batches, or import horovod.torch"
        )
    if _sharded:
        _begun.refuse_join()
        raise UsageError(SHARDED_JOIN)
    for reducer in list(_reducers.values()):
        reducer.leave_step()
    joined: Future[int] = Future()
    threading.Thread(target=_join_horovod, args=(joined, device), daemon=True).start()
    while True:
        number = _begun.by_others()
        if number is not None:
            _take_part(number)
        elif joined.done():
            break
        else:
            time.sleep(_POLL_S)
    last = joined.result()
    # Until every rank has seen that all have joined, none may begin a step of what comes next.
    topology().world.Barrier()
    return last


def _join_horovod(joined: Future[int], device: int) -> None:
    try:
        joined.set_result(int(_horovods_join(device)))
    except BaseException as error:  # handed to the thread that waits
        joined.set_exception(error)


def _take_part(number: int) -> None:
    reducer = _reducers.get(number)
    if reducer is None:
        raise UsageError(
            "hvd.join() takes part in the steps of an optimizer that this rank has dropped: keep "
            "it until hvd.join() returns"
        )
    reducer.take_part()


def shutdown() -> None:
    """End Horovod, after what hvd_ext runs beside it: Horovod may end MPI."""
    _close(_mpi_outlives_horovod)
    _horovods_shutdown()


def _at_exit(pid: int) -> None:
    """End what uses MPI where the program has not; a forked child has nothing that does."""
    if os.getpid() == pid:
        # In an interactive session an error ends one command, and its traceback stays.
        failed = hasattr(sys, "last_value") and not hasattr(sys, "ps1")
        _close(failed=failed)


def _close(free: bool = False, failed: bool = False) -> None:
    """End what uses MPI.

    Args:
        failed: an exception ends this rank, which then waits for no other.
        free: the communicators too. Otherwise they are left to MPI's end, which may have begun:
            once one rank has shut Horovod down, its threads on all ranks end MPI, and a call
            of MPI from this thread would crash.
    """
    global _topology, _begun, _made, _sharded
    for reducer in list(_reducers.values()):
        reducer.close()
    for its in rounds():
        its.close()
    _reducers.clear()
    _rounds.clear()
    wait_until_closed(_LATE_AFTER_S)
    if _topology is not None:
        if not failed:
            _wait_for_others(_LATE_AFTER_S)
        (_topology.close if free else _topology.end_threads)()
    _topology, _begun, _made, _sharded = None, None, 0, False


def _wait_for_others(within_s: float) -> None:
    """Wait until all ranks have come here: MPI, which ends on all at once, may be in use on some.

    Horovod's thread does the waiting, as MPI may end meanwhile.
    """
    if not horovod.is_initialized() or horovod.size() == 1:
        return
    deadline = time.monotonic() + within_s
    try:
        arrived = horovod.allreduce_async(torch.zeros(1), name="hvd_ext.shutdown", op=horovod.Sum)
        while not horovod.poll(arrived) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if horovod.poll(arrived):
            horovod.synchronize(arrived)
    except (HorovodInternalError, ValueError) as error:
        log.debug("hvd_ext: another rank has ended Horovod: %s", error)
