"""A rank of a job with an injected fault, or of a healthy one that waits a lot."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STEPS = 5
_FOREVER_S = 600.0


class Rank:
    """A rank of the job on which the faults and the healthy patterns act.

    Attributes:
        meet: the collective in which ranks wait for each other.
    """

    def __init__(self, where: str) -> None:
        import numpy as np
        from mpi4py import MPI

        self.mpi: Any = MPI
        self.world: Any = MPI.COMM_WORLD
        self.rank, self.size = self.world.rank, self.world.size
        self.values: Any = np.ones(1000)
        self.meet: Callable[[], Any] = {
            "allreduce": lambda: self.world.Allreduce(MPI.IN_PLACE, self.values),
            "barrier": self.world.Barrier,
            "wait": lambda: self.world.Iallreduce(MPI.IN_PLACE, self.values).Wait(),
        }[where]

    @property
    def last(self) -> bool:
        return self.rank == self.size - 1


def work(name: str, where: str, mark: Path) -> None:
    """Be a rank.

    Args:
        name: a key of FAULTS or HEALTHY.
        where: the collective in which ranks wait: "allreduce", "barrier" or "wait".
        mark: an empty file, made when the fault begins.
    """
    job = Rank(where)
    if name in HEALTHY:
        end_s = time.monotonic() + 6.0
        while job.world.bcast(time.monotonic() < end_s):
            HEALTHY[name](job)
        return
    for _ in range(_STEPS):
        job.meet()
    mark.touch()
    FAULTS[name](job)
    job.meet()


def _sleeps(job: Rank) -> None:
    if job.last:
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
        job.world.Bcast(job.values, root=0)
        time.sleep(_FOREVER_S)


def _calls_on_another_communicator(job: Rank) -> None:
    other = job.world.Dup()
    if job.rank == 1:
        other.Allreduce(job.mpi.IN_PLACE, job.values)


def _receives_in_a_circle(job: Rank) -> None:
    job.world.Recv(job.values, source=(job.rank + 1) % job.size)


def _waits_for_a_chain(job: Rank) -> None:
    if job.last:
        time.sleep(_FOREVER_S)
    job.world.Recv(job.values, source=job.rank + 1)


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
                job.world.Recv(job.values, source)
                job.world.Send(job.values, source)
        else:
            time.sleep(0.05 * job.rank)
            job.world.Send(job.values, 0)
            job.world.Recv(job.values, 0)
    job.meet()


def _goes_round(job: Rank) -> None:
    after, before = (job.rank + 1) % job.size, (job.rank - 1) % job.size
    for _ in range(50):
        job.world.Sendrecv(job.values, after, recvbuf=job.values.copy(), source=before)
    job.meet()


def _probes(job: Rank) -> None:
    """A rank that asks again and again is not blocked in a call."""
    request = job.world.Ibarrier()
    end_s = time.monotonic() + 1.2 * job.last
    while not request.Test() or time.monotonic() < end_s:
        time.sleep(0.01)
    with contextlib.suppress(job.mpi.Exception):
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
