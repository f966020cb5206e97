"""A rank of a job with an injected fault, or of a healthy one that waits a lot."""

from __future__ import annotations

import mmap
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.diagnosis.calls import CALLS
from benchmarks.diagnosis.kinds import Meets, OfHorovod, OfHvdExt, OfMPI, Rank, rank_of
from benchmarks.diagnosis.slow import EVEN, HELD_BACK, SLOWED, take_steps

_STEPS = 5
_FOREVER_S = 600.0
# On a link of 0.5 Gbit/s such an exchange takes half a second.
_LARGE_BYTES = 20 << 20


def work(name: str, where: str, mark: Path) -> None:
    """Be a rank.

    Args:
        name: a key of FAULTS or HEALTHY, or what may slow steps.
        where: how ranks wait; see `rank_of`.
        mark: an empty file, made when the fault begins.
    """
    job = rank_of(where)
    if where in STEPS:
        take_steps(name, job, mark, on_hosts=where in ON_HOSTS)
        return
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


def _is_last(job: Meets) -> bool:
    return job.rank == job.size - 1


def _sleeps(job: Meets) -> None:
    if _is_last(job):
        time.sleep(_FOREVER_S)


def _is_stopped(job: Meets) -> None:
    if job.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)


def _is_killed(job: Meets) -> None:
    if job.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def _raises(job: Meets) -> None:
    if job.rank == 1:
        raise RuntimeError("an injected fault")


def _loops_in_python(job: Meets) -> None:
    while job.rank == 1:
        pass


def _loops_in_c(job: Meets) -> None:
    if job.rank == 1:
        sum(iter(int, 1))


def _reads_a_slow_file(job: Meets) -> None:
    if job.rank == 1:
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(pipe := Path(folder) / "pipe")
            pipe.read_bytes()


def _faults_memory(job: Meets) -> None:
    """Rank 1 gets its memory from the kernel again and again."""
    if job.rank == 1:
        memory = mmap.mmap(-1, 64 << 20)
        while True:
            for place in range(0, len(memory), mmap.PAGESIZE):
                memory[place] = 1
            memory.madvise(mmap.MADV_DONTNEED)


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


def _leaves(job: Meets) -> None:
    if job.rank == 1:
        sys.exit()


def _does_not_submit_a_tensor(job: OfHorovod) -> None:
    names = [f"layer{number}.weight" for number in range(4)]
    if job.rank == 1:
        names.pop(2)
    for wait in [job.submit(name) for name in names]:
        wait()
    if job.rank == 1:
        time.sleep(_FOREVER_S)


def _waits_for_another_tensor(job: OfHorovod) -> None:
    names = ("a", "b") if job.rank == 1 else ("b", "a")
    for name in names:
        job.submit(name)()


def _leaves_gradients_out(job: OfHvdExt) -> None:
    """Rank 1 uses no parameter of the first layers, and never takes the step."""
    if job.rank == 1:
        job.backward(leave_out=2)
        time.sleep(_FOREVER_S)


def _has_a_bad_link(job: OfMPI) -> None:
    """The ranks exchange so much that they see what becomes of a link."""
    job.grow(_LARGE_BYTES)
    while True:
        job.meet()


# Faults of a link between hosts.
SLOW_LINK, LOSSY_LINK = "has a slow link", "has a link that loses packets"
LINKS = (SLOW_LINK, "has a link without a carrier", LOSSY_LINK)
# Where ranks take steps, and where each rank is on a host.
STEPS, ON_HOSTS = ("steps", "steps_on_hosts"), ("hosts", "steps_on_hosts")
FAULTS: dict[str, Callable[[Any], None]] = {
    "sleeps": _sleeps,
    "is stopped": _is_stopped,
    "is killed": _is_killed,
    "raises": _raises,
    "loops in Python": _loops_in_python,
    "loops in C": _loops_in_c,
    "reads a slow file": _reads_a_slow_file,
    "faults memory": _faults_memory,
    "calls another operation": _calls_another_operation,
    "calls on another communicator": _calls_on_another_communicator,
    "receives in a circle": _receives_in_a_circle,
    "waits for a chain": _waits_for_a_chain,
    "leaves": _leaves,
    "does not submit a tensor": _does_not_submit_a_tensor,
    "waits for another tensor": _waits_for_another_tensor,
    "leaves gradients out": _leaves_gradients_out,
    **dict.fromkeys(LINKS, _has_a_bad_link),
    **CALLS,
}


def _computes(job: Meets) -> None:
    time.sleep(0.03)
    job.meet()


def _is_uneven(job: Meets) -> None:
    time.sleep(0.3 * (1 + job.rank))
    job.meet()


def _is_bursty(job: Meets) -> None:
    for _ in range(200):
        job.meet()
    time.sleep(1.2)


def _evaluates(job: Meets) -> None:
    for _ in range(20):
        _computes(job)
    if job.rank == 0:
        time.sleep(1.2)
    job.meet()


def _writes_checkpoints(job: Meets) -> None:
    if job.rank == 0:
        with tempfile.TemporaryFile() as file:
            for _ in range(10):
                file.write(bytes(1 << 20))
                file.flush()
                os.fsync(file.fileno())
                time.sleep(0.05)
    job.meet()


def _is_noisy(job: Meets) -> None:
    time.sleep(random.expovariate(20))
    job.meet()


def _pauses(job: Meets) -> None:
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


def _leaves_parameters_unused(job: OfHvdExt) -> None:
    job.step(leave_out=2 * _is_last(job))


def _submits_in_any_order(job: OfHorovod) -> None:
    names = [f"layer{number}.weight" for number in range(20)]
    random.shuffle(names)
    waits = [job.submit(name) for name in names]
    time.sleep(0.3 * (1 + job.rank))
    for wait in waits:
        wait()


HEALTHY: dict[str, Callable[[Any], None]] = {
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
    "leaves parameters unused": _leaves_parameters_unused,
    "submits in any order": _submits_in_any_order,
}

_ANY = (
    *("sleeps", "is stopped", "is killed", "loops in Python", "loops in C", "reads a slow file"),
    *("faults memory", "computes", "is uneven", "is bursty", "evaluates", "writes checkpoints"),
    *("is noisy", "pauses"),
)
_OF_TENSORS = ("does not submit a tensor", "waits for another tensor", "submits in any order")
_OF_GRADIENTS = ("leaves gradients out", "leaves parameters unused")
_OF_MPI = tuple(
    name
    for name in (*FAULTS, *HEALTHY)
    if name not in (*_OF_TENSORS, *_OF_GRADIENTS, *LINKS, *CALLS)
)


def served(where: str) -> tuple[str, ...]:
    """The faults and healthy patterns of jobs that wait so."""
    if where == "torch":
        # Gloo fails at once in the peers of a process that is gone: the job ends.
        return tuple(name for name in _OF_MPI if name not in ("is killed", "raises", "leaves"))
    if where == "steps":
        return (SLOWED, HELD_BACK, EVEN)
    if where == "calls":
        return tuple(CALLS)
    if where == "steps_on_hosts":
        return (SLOW_LINK, LOSSY_LINK, EVEN)
    if where == "hosts":
        return (*_ANY, "goes round", *LINKS)
    if where == "horovod":
        return (*_ANY, *_OF_TENSORS)
    if where == "hvd_ext":
        # It sees that the process of a rank has ended, and ends the job.
        return (*(name for name in _ANY if name != "is killed"), *_OF_GRADIENTS)
    return _OF_MPI
