"""One reading of a running job: its ranks' counters and standings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hvd_ext.errors import UsageError
from hvprof.format.counters import Counters, read_counters
from hvprof.live import words
from hvprof.live.reading import age_s, in_order, read_heads, read_standing
from hvprof.live.standing import Standing
from hvprof.live.waits import ENDED
from hvprof.model import POLLS
from hvprof.recording.load import META_NAME, job_folders, latest_job, read_meta

# A file may be caught while a job creates or replaces it.
_PAUSE_S = 0.2
_CODE_S = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class RankState:
    """A rank at one time.

    Attributes:
        counters: counters of the calls and steps that have ended.
        unended_s: time of its threads in unfinished calls, summed; without Horovod's coordination
            and waits by name.
        call_s: time of the longest of these calls, or of the waits by name.
        since_step_s: time since its last step ended; 0 if it has marked none.
    """

    counters: Counters
    unended_s: float
    call_s: float
    since_step_s: float

    @property
    def mpi_s(self) -> float:
        """Return the time of all threads in MPI's calls since the start, without coordination."""
        ended_s = sum(
            one.time_s
            for one in self.counters.counts
            if one.source in ("mpi", "torch") and one.traffic != "control"
        )
        return ended_s + self.unended_s


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A job at one time.

    Attributes:
        unix_s: time of the reading.
        standings: standings of all ranks, in order.
        ranks: ranks that have started MPI, by number.
        ended: the job's end, as a line; "" while it runs.
    """

    unix_s: float
    standings: tuple[Standing, ...]
    ranks: Mapping[int, RankState]
    ended: str


def read_snapshot(directory: Path) -> Snapshot | None:
    """Read a job; None if no rank has started MPI yet. Nothing is written.

    Raises:
        UsageError: the folder holds no recording, or a file that is cut off, foreign or of
            another version; or the job has ended without a rank that started MPI.
    """
    try:
        snapshot = _read(directory)
    except UsageError:
        time.sleep(_PAUSE_S)
        snapshot = _read(directory)
    if snapshot and snapshot.ended and not _has_code(directory):
        # The ranks have ended MPI; hvprof record knows the code once their processes are gone.
        time.sleep(_CODE_S)
        if _has_code(directory):
            snapshot = _read(directory)
    return snapshot


def _has_code(directory: Path) -> bool:
    return read_meta(directory / META_NAME).get("exit_code") is not None


def _read(directory: Path) -> Snapshot | None:
    meta = read_meta(directory / META_NAME)
    if meta and meta.get("exit_code") is None and not job_folders(directory):
        return None
    states: dict[int, RankState] = {}
    standings: dict[int, Standing] = {}
    heads = read_heads(latest_job(directory))
    for path, head in heads:
        counters = read_counters(path)
        if counters is None:
            continue
        # After the counters: a call that has not ended here is missing in them.
        standing = read_standing(path, head)
        after_s = (time.monotonic_ns() - counters.at_ns) / 1e9
        calls = [
            (one.call, max(one.since_s - after_s, 0.0))
            for one in standing.threads
            if one.call and not one.call.coordination
        ]
        standings[head.rank] = standing
        states[head.rank] = RankState(
            counters=counters,
            # A wait that the program reports is not counted when it ends, and a loop of tests is
            # counted already.
            unended_s=sum(
                time_s for call, time_s in calls if not call.about and call.operation not in POLLS
            ),
            call_s=max((time_s for _, time_s in calls), default=0.0),
            since_step_s=age_s(counters.step_end_ns, head),
        )
    if not states:
        return None
    ordered = in_order(standings)
    return Snapshot(time.time(), ordered, states, _ended(ordered, meta.get("exit_code")))


def _ended(standings: tuple[Standing, ...], exit_code: int | None) -> str:
    if exit_code is not None:
        return f"the job has ended with code {exit_code}"
    if any(one.process not in ENDED for one in standings):
        return ""
    return f"the job has ended: {words.ended(standings)}"
