"""Faults in calls other than the collective in which ranks meet: messages, files, windows.

Each is the fault of one rank, or of all, in a job of OfMPI's ranks; the ranks then meet.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.diagnosis.kinds import Meets

_FOREVER_S = 600.0
_ASKED, _SENT = 8, 7


def _mpi() -> Any:
    from mpi4py import MPI

    return MPI


def _is_late_for(job: Meets, call: Callable[[], Any]) -> None:
    """Rank 1 never comes to a call that all ranks make together."""
    if job.rank == 1:
        time.sleep(_FOREVER_S)
    call()


def _receives_from_any(job: Meets) -> None:
    mpi = _mpi()
    mpi.COMM_WORLD.Recv(bytearray(8), mpi.ANY_SOURCE)


def _is_stopped_before_a_fence(job: Meets) -> None:
    mpi = _mpi()
    window = mpi.Win.Allocate(8, comm=mpi.COMM_WORLD)
    window.Fence()
    if job.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    window.Fence()


def _is_probed_for(job: Meets) -> None:
    if job.rank == 1:
        time.sleep(_FOREVER_S)
    while job.rank == 0 and not _mpi().COMM_WORLD.Iprobe(1, _ASKED):
        pass


def _is_tested_for(job: Meets) -> None:
    if job.rank == 1:
        time.sleep(_FOREVER_S)
    if job.rank == 0:
        request = _mpi().COMM_WORLD.Irecv(bytearray(8), 1)
        while not request.Test():
            pass


def _sends_another_tag(job: Meets) -> None:
    world = _mpi().COMM_WORLD
    if job.rank == 1:
        world.Send(bytes(8), 0, _SENT)
    elif job.rank == 0:
        world.Recv(bytearray(8), 1, _ASKED)


def _reads_a_pipe(job: Meets) -> None:
    if job.rank == 1:
        reading, _ = os.pipe()
        os.read(reading, 1)


def _waits_for_a_worker(job: Meets) -> None:
    """The worker process of a DataLoader sleeps."""
    if job.rank == 1:
        from torch.utils.data import DataLoader

        for _ in DataLoader(_Slow(), num_workers=1):  # type: ignore[arg-type]
            pass


class _Slow:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        time.sleep(_FOREVER_S)
        return index


def _does_not_open(job: Meets) -> None:
    mpi = _mpi()
    path = mpi.COMM_WORLD.bcast(str(Path(tempfile.mkdtemp()) / "file"))
    _is_late_for(
        job, lambda: mpi.File.Open(mpi.COMM_WORLD, path, mpi.MODE_CREATE | mpi.MODE_WRONLY)
    )


def _does_not_duplicate(job: Meets) -> None:
    _is_late_for(job, _mpi().COMM_WORLD.Dup)


def _is_sent_too_much(job: Meets) -> None:
    """Rank 0 sends a message that no library keeps until it is received."""
    if job.rank == 1:
        time.sleep(_FOREVER_S)
    if job.rank == 0:
        _mpi().COMM_WORLD.Send(bytes(64 << 20), 1)


CALLS: dict[str, Callable[[Any], None]] = {
    "receives from any rank": _receives_from_any,
    "is stopped before a fence": _is_stopped_before_a_fence,
    "is probed for": _is_probed_for,
    "is tested for": _is_tested_for,
    "sends another tag": _sends_another_tag,
    "reads an empty pipe": _reads_a_pipe,
    "waits for a worker process": _waits_for_a_worker,
    "does not open a file": _does_not_open,
    "does not duplicate a communicator": _does_not_duplicate,
    "does not receive": _is_sent_too_much,
}
