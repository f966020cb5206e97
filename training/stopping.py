"""A run that must stop, by a signal or because its time is up: all ranks stop at the same step.

A request to one rank reaches all some steps later; they end with STOPPED after a checkpoint.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import deque
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

# The code by which Grid Engine, and many scripts for Slurm, queue a job again.
STOPPED = 99
SIGNALS = (signal.SIGUSR1, signal.SIGTERM)

# Ranks learn of a request this many steps later, so that none of them waits for an answer.
_STEPS_BEHIND = 4
_TIME_IS_UP = 1000
_Number = NDArray[np.int32]


class Stopping:
    """Whether this run must stop; all ranks agree."""

    def __init__(self, after_s: float | None) -> None:
        """Listen to SIGNALS from now on.

        Args:
            after_s: seconds from now until the time is up; None: it never is.
        """
        self._end_s = None if after_s is None else time.monotonic() + after_s
        self._mine = self._agreed = 0
        self._comm: MPI.Intracomm | None = None
        self._under_way: deque[tuple[MPI.Request, _Number, _Number]] = deque()
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    def asked(self) -> bool:
        """Whether to stop now. A collective, to be called after every step."""
        from mpi4py import MPI

        if self._end_s is not None and time.monotonic() > self._end_s:
            self._mine = self._mine or _TIME_IS_UP
        sent, largest = np.array([self._mine], np.int32), np.zeros(1, np.int32)
        request = self._own_comm().Iallreduce(sent, largest, MPI.MAX)
        self._under_way.append((request, sent, largest))
        if len(self._under_way) > _STEPS_BEHIND:
            self._hear()
        return self._agreed != 0

    def any_rank(self, mine: bool) -> bool:
        """Whether `mine` is true on any rank. A collective, which waits for all."""
        return bool(self._own_comm().allreduce(int(mine)))

    def leave(self, hvd: ModuleType, stopped: str, hint: str) -> NoReturn:
        """End the process with the code for a restart. A collective.

        Args:
            hvd: the exchange.
            stopped: the place, for the message.
            hint: text to add to the flags to resume.
        """
        reason = self._reason()
        self.settle()
        if hvd.rank() == 0:
            print(
                f"{stopped} ({reason}): its checkpoint is written, resume with the same flags"
                f"{hint}",
                file=sys.stderr,
                flush=True,
            )
        # A launcher ends the job when the first rank leaves; by then rank 0 has printed its line.
        hvd.barrier()
        raise SystemExit(STOPPED)

    def settle(self) -> None:
        """Receive all pending requests, so that none outlives the run. A collective."""
        while self._under_way:
            self._hear()

    def _own_comm(self) -> MPI.Intracomm:
        # Starts MPI if it is not running, which importing this module must not do.
        from mpi4py import MPI

        if self._comm is None:
            self._comm = MPI.COMM_WORLD.Dup()
        return self._comm

    def _hear(self) -> None:
        request, _, largest = self._under_way.popleft()
        request.Wait()
        self._agreed = max(self._agreed, int(largest[0]))

    def _reason(self) -> str:
        return (
            "its time is up" if self._agreed == _TIME_IS_UP else signal.Signals(self._agreed).name
        )

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A second request changes nothing: Slurm signals a rank and its keeper, which passes it on.
        self._mine = number
