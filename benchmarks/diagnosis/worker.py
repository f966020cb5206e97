"""A rank of a job with an injected fault, or of a healthy one that waits a lot."""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

_STEPS = 5
_FOREVER_S = 600.0


class Rank(Protocol):
    """A rank of the job on which the faults and the healthy patterns act."""

    rank: int
    size: int

    def meet(self) -> None:
        """Wait for all ranks, in the collective of the job."""

    def agree(self, value: bool) -> bool:
        """The value of rank 0."""

    def call_another_operation(self) -> None:
        """Call a collective that the others do not call."""

    def meet_in_another_group(self, calls: bool) -> None:
        """Make a communicator of all ranks, and wait in it if this rank `calls`."""

    def send(self, to: int) -> None:
        """Send some bytes, and wait until they are taken."""

    def receive(self, source: int) -> None:
        """Wait for some bytes."""

    def begin_barrier(self) -> Callable[[], bool]:
        """Begin to wait for all ranks; the result says whether they have come."""


class OfMPI:
    """A rank that calls MPI: in "allreduce", "barrier" or, without blocking, "wait"."""

    def __init__(self, where: str) -> None:
        import numpy as np
        from mpi4py import MPI

        self._mpi: Any = MPI
        self._world: Any = MPI.COMM_WORLD
        self.rank, self.size = self._world.rank, self._world.size
        self._values: Any = np.ones(1000)
        self._meet: Callable[[], Any] = {
            "allreduce": lambda: self._world.Allreduce(MPI.IN_PLACE, self._values),
            "barrier": self._world.Barrier,
            "wait": lambda: self._world.Iallreduce(MPI.IN_PLACE, self._values).Wait(),
        }[where]

    def meet(self) -> None:
        self._meet()

    def agree(self, value: bool) -> bool:
        return bool(self._world.bcast(value))

    def call_another_operation(self) -> None:
        self._world.Bcast(self._values, root=0)

    def meet_in_another_group(self, calls: bool) -> None:
        other = self._world.Dup()
        if calls:
            other.Allreduce(self._mpi.IN_PLACE, self._values)

    def send(self, to: int) -> None:
        self._world.Send(self._values, to)

    def receive(self, source: int) -> None:
        self._world.Recv(self._values, source)

    def begin_barrier(self) -> Callable[[], bool]:
        test: Callable[[], bool] = self._world.Ibarrier().Test
        return test


class OfTorch:
    """A rank that calls torch.distributed on Gloo, without MPI."""

    def __init__(self) -> None:
        import torch
        import torch.distributed

        self._torch: Any = torch.distributed
        self._torch.init_process_group("gloo")
        self.rank, self.size = self._torch.get_rank(), self._torch.get_world_size()
        self._values: Any = torch.ones(1000)

    def meet(self) -> None:
        self._torch.all_reduce(self._values)

    def agree(self, value: bool) -> bool:
        values = self._values.new_tensor([value])
        self._torch.broadcast(values, 0)
        return bool(values[0])

    def call_another_operation(self) -> None:
        self._torch.broadcast(self._values, 0)

    def meet_in_another_group(self, calls: bool) -> None:
        other = self._torch.new_group(list(range(self.size)))
        if calls:
            self._torch.all_reduce(self._values, group=other)

    def send(self, to: int) -> None:
        self._torch.send(self._values, to)

    def receive(self, source: int) -> None:
        self._torch.recv(self._values, source)

    def begin_barrier(self) -> Callable[[], bool]:
        test: Callable[[], bool] = self._torch.barrier(async_op=True).is_completed
        return test


def work(name: str, where: str, mark: Path) -> None:
    """Be a rank.

    Args:
        name: a key of FAULTS or HEALTHY.
        where: the collective in which ranks wait: "torch", or one of OfMPI's.
        mark: an empty file, made when the fault begins.
    """
    job: Rank = OfTorch() if where == "torch" else OfMPI(where)
    if name in HEALTHY:
        end_s = time.monotonic() + 6.0
        while job.agree(time.monotonic() < end_s):
            HEALTHY[name](job)
        return
    for _ in range(_STEPS):
        job.meet()
    mark.touch()
    FAULTS[name](job)
    job.meet()


def _is_last(job: Rank) -> bool:
    return job.rank == job.size - 1


def _sleeps(job: Rank) -> None:
    if _is_last(job):
        time.sleep(_FOREVER_S)


def _is_stopped(job: Rank) -> None:
    if job.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)


def _is_killed(job: Rank) -> None:
    if job.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def _raises(job: Rank) -> None:
    if job.rank == 1:
        raise RuntimeError("an injected fault")


def _loops_in_python(job: Rank) -> None:
    while job.rank == 1:
        pass


def _loops_in_c(job: Rank) -> None:
    if job.rank == 1:
        sum(iter(int, 1))


def _reads_a_slow_file(job: Rank) -> None:
    if job.rank == 1:
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(pipe := Path(folder) / "pipe")
            pipe.read_bytes()


def _calls_another_operation(job: Rank) -> None:
    if job.rank == 1:
        job.call_another_operation()
        time.sleep(_FOREVER_S)


def _calls_on_another_communicator(job: Rank) -> None:
    job.meet_in_another_group(job.rank == 1)


def _receives_in_a_circle(job: Rank) -> None:
    job.receive((job.rank + 1) % job.size)


def _waits_for_a_chain(job: Rank) -> None:
    if _is_last(job):
        time.sleep(_FOREVER_S)
    job.receive(job.rank + 1)


def _leaves(job: Rank) -> None:
    if job.rank == 1:
        sys.exit()


FAULTS: dict[str, Callable[[Rank], None]] = {
    "sleeps": _sleeps,
    "is stopped": _is_stopped,
    "is killed": _is_killed,
    "raises": _raises,
    "loops in Python": _loops_in_python,
    "loops in C": _loops_in_c,
    "reads a slow file": _reads_a_slow_file,
    "calls another operation": _calls_another_operation,
    "calls on another communicator": _calls_on_another_communicator,
    "receives in a circle": _receives_in_a_circle,
    "waits for a chain": _waits_for_a_chain,
    "leaves": _leaves,
}


def _computes(job: Rank) -> None:
    time.sleep(0.03)
    job.meet()


def _is_uneven(job: Rank) -> None:
    time.sleep(0.3 * (1 + job.rank))
    job.meet()


def _is_bursty(job: Rank) -> None:
    for _ in range(200):
        job.meet()
    time.sleep(1.2)


def _evaluates(job: Rank) -> None:
    for _ in range(20):
        _computes(job)
    if job.rank == 0:
        time.sleep(1.2)
    job.meet()


def _writes_checkpoints(job: Rank) -> None:
    if job.rank == 0:
        with tempfile.TemporaryFile() as file:
            for _ in range(10):
                file.write(bytes(1 << 20))
                file.flush()
                os.fsync(file.fileno())
                time.sleep(0.05)
    job.meet()


def _is_noisy(job: Rank) -> None:
    time.sleep(random.expovariate(20))
    job.meet()


def _pauses(job: Rank) -> None:
    job.meet()
    time.sleep(3.0)


def _serves(job: Rank) -> None:
    """Rank 0 gives out work, and the others come for it."""
    for _ in range(10):
        if job.rank == 0:
            for source in range(1, job.size):
                job.receive(source)
                job.send(source)
        else:
            time.sleep(0.05 * job.rank)
            job.send(0)
            job.receive(0)
    job.meet()


def _goes_round(job: Rank) -> None:
    after, before = (job.rank + 1) % job.size, (job.rank - 1) % job.size
    for _ in range(50):
        # Every second rank sends first, so that none waits for itself.
        for call, peer in [(job.send, after), (job.receive, before)][:: 1 - 2 * (job.rank % 2)]:
            call(peer)
    job.meet()


def _probes(job: Rank) -> None:
    """A rank that asks again and again is not blocked in a call."""
    have_come = job.begin_barrier()
    end_s = time.monotonic() + 1.2 * _is_last(job)
    while not have_come() or time.monotonic() < end_s:
        time.sleep(0.01)
    job.meet()


HEALTHY: dict[str, Callable[[Rank], None]] = {
    "computes": _computes,
    "is uneven": _is_uneven,
    "is bursty": _is_bursty,
    "evaluates": _evaluates,
    "writes checkpoints": _writes_checkpoints,
    "is noisy": _is_noisy,
    "pauses": _pauses,
    "serves": _serves,
    "goes round": _goes_round,
    "probes": _probes,
}
