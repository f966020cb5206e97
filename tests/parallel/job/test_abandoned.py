"""Requests that are given up: a late message is written into memory that is still theirs."""

from __future__ import annotations

import gc
import time
import weakref

import numpy as np
import pytest

from hvd_ext.errors import StallError
from hvd_ext.job import monitored_allgather as module
from hvd_ext.job.monitored_allgather import monitored_allgather
from tests.ranks.asserts import parallel_assert

pytestmark = pytest.mark.ranks(2)


def watched(comm):
    """The same communicator, and weak references to the requests that it makes."""
    from mpi4py import MPI

    made = []

    def noted(request):
        made.append(weakref.ref(request))
        return request

    class Watched(MPI.Intracomm):
        def Dup(self, *arguments):
            return self

        def irecv(self, *arguments, **named):
            return noted(super().irecv(*arguments, **named))

        def isend(self, *arguments, **named):
            return noted(super().isend(*arguments, **named))

        def Irecv(self, *arguments, **named):
            return noted(super().Irecv(*arguments, **named))

        def Iallgather(self, *arguments, **named):
            return noted(super().Iallgather(*arguments, **named))

    return Watched(comm), made


def kept(made):
    gc.collect()
    return [reference() is not None for reference in made]


def test_receives_of_a_monitored_allgather_outlive_its_stall(comm):
    if comm.rank == 0:
        comm, made = watched(comm)
        with pytest.raises(StallError, match="rank 1 did not reach a test"):
            monitored_allgather(comm, 0, 0.1, "a test")
        there = kept(made)
    comm.Barrier()
    if comm.rank == 1:
        comm.send(1, 0, tag=module._TAG)
        there = [True]
    parallel_assert(comm, all(there), there)


def test_a_message_after_a_stall_is_not_taken_for_the_next_one(comm):
    """The late one meets the receive that was given up."""
    if comm.rank == 0:
        with pytest.raises(StallError):
            monitored_allgather(comm, "first", 0.1, "a test")
    comm.Barrier()
    if comm.rank == 1:
        comm.send("late", 0, tag=module._TAG)
    both = monitored_allgather(comm, f"second of {comm.rank}", 30, "a test")
    parallel_assert(comm, both == ["second of 0", "second of 1"], both)


def test_an_interrupted_wait_for_the_answer_keeps_its_requests(comm, monkeypatch):
    if comm.rank == 1:
        slept = []

        def interrupted(duration_s):
            slept.append(duration_s)
            if len(slept) == 3:
                raise KeyboardInterrupt

        monkeypatch.setattr(module.time, "sleep", interrupted)
        comm, made = watched(comm)
        with pytest.raises(KeyboardInterrupt):
            monitored_allgather(comm, "mine", 30, "a test")
        there = kept(made)
        monkeypatch.undo()
    comm.Barrier()
    if comm.rank == 0:
        both = monitored_allgather(comm, "other", 30, "a test")
        there = [both == ["other", "mine"]]
    parallel_assert(comm, all(there), there)


@pytest.mark.parametrize("what", ["halo", "sum"])
def test_a_spatial_exchange_outlives_its_stall(comm, monkeypatch, what):
    import torch

    from hvd_ext.spatial.exchange.communicator import MpiCommunicator

    monkeypatch.setenv("HVD_EXT_STALL_TIMEOUT_S", "0.1")
    watching, made = watched(comm)
    spatial = MpiCommunicator(watching)

    def exchange():
        if what == "sum":
            return lambda: spatial.allreduce(torch.ones(1000))
        return spatial.start([], [(1 - comm.rank, torch.empty(1000))])

    if comm.rank == 0:
        wait = exchange()
        with pytest.raises(StallError, match="rank"):
            wait()
        del wait, spatial
        there = kept(made)
    comm.Barrier()
    if comm.rank == 1:
        there = [True]
        if what == "sum":
            monkeypatch.setenv("HVD_EXT_STALL_TIMEOUT_S", "30")
            exchange()()
        else:
            comm.Send(np.ones(1000, np.float32), 0, 1)
    parallel_assert(comm, bool(there) and all(there), there)


def test_a_watchdog_waits_no_longer_than_it_says_for_a_question(comm):
    """A rank that ends, or is stopped, in the middle of a message does not hold up another."""
    from hvd_ext.job import watchdog

    begun_s = time.monotonic()
    request = comm.irecv(source=1 - comm.rank, tag=7)
    answer = watchdog._received(request)
    parallel_assert(comm, answer is None, answer)
    assert time.monotonic() - begun_s >= watchdog._QUESTION_WITHIN_S
    comm.Barrier()
    comm.send("late", 1 - comm.rank, tag=7)
    comm.Barrier()
