"""The GPU's time of exchanges, for hvprof: the host does not wait for it.

Two events enclose the work of an exchange in its streams. They are read in a later step, when the
GPU has reached them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from hvd_ext.events import CommEvent, emit


@dataclass(slots=True)
class Timed:
    """An exchange that runs: its first event, and its last one once that is recorded."""

    exchange: CommEvent
    began: int
    ended: int = 0


class GpuTimes:
    """Times exchanges on a GPU, and reports those that have ended.

    Several threads may use it.
    """

    def __init__(self, runtime: Any) -> None:
        """Time nothing yet; `runtime` is CuPy's."""
        self._runtime = runtime
        self._free: list[int] = []
        self._pending: deque[Timed] = deque()

    def begin(self, exchange: CommEvent, stream: int) -> Timed:
        """Record in a stream that the work of an exchange begins, on the thread's GPU."""
        timed = Timed(exchange, self._record(stream))
        self._pending.append(timed)
        return timed

    def end(self, timed: Timed, stream: int) -> None:
        """Record in a stream that it ends."""
        timed.ended = self._record(stream)

    def report(self) -> None:
        """Emit the exchanges that the GPU has done, in their order."""
        while self._pending:
            timed = self._pending[0]
            if not timed.ended or self._runtime.eventQuery(timed.ended) != 0:
                return
            self._pending.popleft()
            ms = self._runtime.eventElapsedTime(timed.began, timed.ended)
            emit(replace(timed.exchange, transfer_s=ms / 1e3))
            self._free += [timed.began, timed.ended]

    def _record(self, stream: int) -> int:
        event: int = self._free.pop() if self._free else self._runtime.eventCreate()
        self._runtime.eventRecord(event, stream)
        return event
