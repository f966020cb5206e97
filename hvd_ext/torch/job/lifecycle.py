"""From hvd.init() to hvd.shutdown(): Horovod's own, and the parts that hvd_ext adds."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import sys
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, WeakValueDictionary

import torch

from hvd_ext import variables
from hvd_ext.errors import UsageError
from hvd_ext.job.closing import wait_until_closed
from hvd_ext.job.departures import Departures, met_in_time
from hvd_ext.job.ending import LATE_AFTER_S, at_exit
from hvd_ext.job.topology import Topology, discover
from hvd_ext.job.waiting import until
from hvd_ext.system import freed_memory
from hvd_ext.system.process import keep_mpi_from_workers
from hvd_ext.torch import horovods
from hvd_ext.torch.job import background
from hvd_ext.torch.job.begun_steps import BegunSteps
from hvd_ext.torch.sync.rounds import Rounds
from hvd_ext.variables import misspelt

if TYPE_CHECKING:
    from hvd_ext.torch.reduction.protocol import Reduces

log = logging.getLogger("hvd_ext")


@dataclass
class _Job:
    """The state of hvd_ext between init() and shutdown().

    Attributes:
        mpi_outlives_horovod: whether MPI outlives Horovod: the program started MPI first and ends
            it, or there is no Horovod, and mpi4py ends MPI.
        topology: nodes and ranks, once a part needs them.
        begun: the steps that ranks have begun; None on several nodes, where a rank cannot see them.
        made: the number of optimizers that were made, dropped ones included.
        join_refusal: why some rank's optimizer excludes join, as of the last one that was made; or
            None.
        reducers: reducers of the optimizers in the order in which they were made, the same on every
            rank.
        rounds: rounds of the optimizers whose nodes exchange weights.
    """

    mpi_outlives_horovod: bool = False
    topology: Topology | None = None
    begun: BegunSteps | None = None
    made: int = 0
    join_refusal: str | None = None
    reducers: WeakValueDictionary[int, Reduces] = field(default_factory=WeakValueDictionary)
    rounds: WeakSet[Rounds] = field(default_factory=WeakSet)


_job = _Job()


def init(*arguments: Any, **named: Any) -> Any:
    """Start Horovod, as `horovod.torch.init` does, so that its waiting takes little CPU time.

    Memory that this process frees is kept from now on, unless malloc has settings of the user.

    Args:
        arguments: arguments of Horovod's `init`.
        named: keyword arguments of Horovod's `init`.

    Returns:
        The result of Horovod's `init`.

    Raises:
        UsageError: MPI has ended, and cannot be started again.
    """
    if not horovods.is_initialized() and _mpi_has_ended():
        raise UsageError(
            "hvd.init() after MPI has ended, which Horovod started and hvd.shutdown() ended: put "
            "`from mpi4py import MPI` before the first hvd.init(), so that MPI outlives Horovod"
        )
    if reason := freed_memory.keep_freed_memory():
        log.info("hvd_ext: freed memory is left to malloc: %s", reason)
    mpi = sys.modules.get("mpi4py.MPI")  # importing it starts MPI
    if not horovods.is_initialized():
        started = mpi is not None and mpi.Is_initialized()
        _job.mpi_outlives_horovod = started or not horovods.INSTALLED
    with background.noting_thread():
        result = horovods.init(*arguments, **named)
    background.give_way_from_start()
    if _job.mpi_outlives_horovod:
        keep_mpi_from_workers()
    if horovods.rank() == 0:
        for line in misspelt(os.environ):
            log.warning("hvd_ext: %s", line)
    return result


def _mpi_has_ended() -> bool:
    """Ask MPI, through Horovod's library, because importing mpi4py would start it."""
    ended = ctypes.c_int(0)
    library = ctypes.CDLL(horovods.LIBRARY_PATH)
    if hasattr(library, "MPI_Finalized"):  # otherwise Horovod was built without MPI
        library.MPI_Finalized(ctypes.byref(ended))
    return bool(ended.value)


def topology() -> Topology:
    """Return this job's nodes and ranks; the first call is collective.

    Raises:
        StallError: ranks did not reach this in time; names them.
    """
    if _job.topology is None:
        from mpi4py import MPI

        _job.topology = discover(MPI.COMM_WORLD, variables.STALL_TIMEOUT_S.read())
        # It runs before Horovod's function, which was registered earlier and ends MPI.
        at_exit(lambda failed: _close(failed=failed))
    return _job.topology


def begun_steps() -> BegunSteps | None:
    """Return the steps that ranks have begun; the first call is collective.

    Raises:
        WindowError: on every rank, if ranks of the node cannot share memory.
    """
    if _job.begun is None and topology().one_node:
        _job.begun = BegunSteps(topology().node)
    return _job.begun


def add(reducer: Reduces, rounds: Rounds | None = None) -> None:
    """Have join and shutdown know of an optimizer's gradients, and shutdown of its rounds.

    Collective, because making an optimizer is.
    """
    if _job.join_refusal:
        gc.collect()
        refusals = (other.join_refusal for other in _job.reducers.values())
        left = topology().world.allgather(next(filter(None, refusals), None))
        _job.join_refusal = next(filter(None, left), None)
    _job.join_refusal = _job.join_refusal or reducer.join_refusal
    reducer.number = _job.made
    _job.reducers[_job.made] = reducer
    if rounds is not None:
        _job.rounds.add(rounds)
    _job.made += 1


def rounds() -> list[Rounds]:
    """Return the rounds of the optimizers whose nodes exchange weights."""
    return list(_job.rounds)


def join(device: int = -1) -> int:
    """Wait, as Horovod's join does, until every rank has called it.

    Meanwhile this rank takes part in the other ranks' steps with zeros: its own parameters stay
    unchanged, and their `.grad` is overwritten.

    Args:
        device: see Horovod.

    Returns:
        The rank that joined last.

    Raises:
        UsageError: an optimizer exchanges its gradients in the arena of several nodes, is sharded,
            or reproducible.
    """
    if not _job.made:
        return int(horovods.join(device))
    # This depends on facts that are the same on every rank, not on whether the garbage collector
    # has freed an optimizer.
    begun = _job.begun
    if begun is None:
        raise UsageError(
            "hvd.join() serves hvd_ext's DistributedOptimizer on one node only, and this job has "
            f"{topology().nodes}: give every rank as many batches, or import horovod.torch"
        )
    if _job.join_refusal:
        begun.refuse_join()
        raise UsageError(_job.join_refusal)
    for reducer in list(_job.reducers.values()):
        reducer.leave_step()
    begun.note_join()
    joined: Future[int] = Future()
    threading.Thread(target=_join_horovod, args=(joined, device), daemon=True).start()

    def over() -> bool:
        while (number := begun.by_others()) is not None:
            _take_part(number)
        return joined.done()

    until(over)
    last = begun.joined_last(joined.result())
    # No rank may begin its next step until every rank has seen that all have joined.
    topology().world.Barrier()
    return last


def _join_horovod(joined: Future[int], device: int) -> None:
    try:
        joined.set_result(int(horovods.join(device)))
    except BaseException as error:  # raised in the thread that waits
        joined.set_exception(error)


def _take_part(number: int) -> None:
    reducer = _job.reducers.get(number)
    if reducer is None:
        raise UsageError(
            "hvd.join() takes part in the steps of an optimizer that this rank has dropped: keep "
            "it until hvd.join() returns"
        )
    reducer.take_part()


def shutdown() -> None:
    """End hvd_ext's parts, then Horovod, which may end MPI."""
    _close(_job.mpi_outlives_horovod)
    horovods.shutdown()


def _close(free: bool = False, failed: bool = False) -> None:
    """End the parts that use MPI.

    Args:
        failed: an exception ends this rank, which then waits for no other rank.
        free: whether to free the communicators, too. Otherwise MPI's end frees them, which may have
            begun: once one rank has shut Horovod down, Horovod's threads on all ranks end MPI, and
            a call of MPI from this thread would crash.
    """
    global _job
    job = _job
    for reducer in list(_job.reducers.values()):
        reducer.close()
    for its in rounds():
        its.close()
    job.reducers.clear()
    job.rounds.clear()
    wait_until_closed(LATE_AFTER_S)
    if job.topology is not None:
        if not failed:
            _wait_for_others(job.topology.departures)
        (job.topology.close if free else job.topology.end_threads)()
    _job = _Job()


def _wait_for_others(departures: Departures) -> None:
    """Wait until all ranks are here, because MPI ends on all, and some may still use it.

    Horovod's thread does the waiting, because MPI may end meanwhile.
    """
    if not horovods.is_initialized() or horovods.size() == 1:
        return
    try:
        arrived = horovods.allreduce_async(torch.zeros(1), name="hvd_ext.shutdown", op=horovods.Sum)
        if met_in_time(partial(horovods.poll, arrived), LATE_AFTER_S, departures.announce):
            horovods.synchronize(arrived)
    except (horovods.HorovodInternalError, ValueError) as error:
        log.debug("hvd_ext: another rank has ended Horovod: %s", error)
