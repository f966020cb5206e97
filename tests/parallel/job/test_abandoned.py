"""Requests that are given up: a late message is written into memory that is still theirs."""

from __future__ import annotations

import gc
import time
import weakref

import numpy as np
import pytest

from hvd_ext.errors import StallError
from hvd_ext.job import waiting
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
        with pytest.raises(StallError):
            monitored_allgather(comm, 1, 30, "a test")
        there = [True]
    parallel_assert(comm, all(there), there)


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_is_late_is_told_so_and_the_next_round_is_whole(comm, late):
    for which in range(2):
        limit_s = 30 if comm.rank == late else 0.1
        if comm.rank == late:
            comm.Barrier()
        with pytest.raises(StallError, match=f"rank {late} did not reach a test") as refused:
            monitored_allgather(comm, "late", limit_s, "a test")
        assert refused.value.ranks == (late,)
        if comm.rank != late:
            comm.Barrier()
        both = monitored_allgather(comm, f"{which} of {comm.rank}", 30, "a test")
        parallel_assert(comm, both == [f"{which} of 0", f"{which} of 1"], both)


@pytest.mark.parametrize("interrupted", [0, 1])
def test_a_rank_that_is_interrupted_did_not_take_part(comm, monkeypatch, interrupted):
    there = [True]
    if comm.rank == interrupted:
        slept = []

        def interrupt(duration_s):
            slept.append(duration_s)
            if len(slept) == 3:
                raise KeyboardInterrupt

        monkeypatch.setattr(waiting.time, "sleep", interrupt)
        watching, made = watched(comm)
        with pytest.raises(KeyboardInterrupt):
            monitored_allgather(watching, "mine", 30, "a test")
        there = kept(made)
        monkeypatch.undo()
    comm.Barrier()
    if comm.rank != interrupted:
        with pytest.raises(StallError, match=f"rank {interrupted} did not reach"):
            monitored_allgather(comm, "other", 30, "a test")
    both = monitored_allgather(comm, comm.rank, 30, "a test")
    parallel_assert(comm, both == [0, 1], both)
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
        return spatial.start([], [(1 - comm.rank, torch.empty(1000))], torch.empty(0))

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
