"""Reads the traces of all ranks, on one clock."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hvd_ext.errors import UsageError
from hvprof.format.key import REGION, SOURCES, decode_all
from hvprof.format.layout import EVENT
from hvprof.format.reader import Tables, check_version, read_bytes, read_tables
from hvprof.model import RankRecording, Recording

_MAGIC = b"hvtrace\n"
Events = NDArray[np.void]


@dataclass(frozen=True, slots=True, eq=False)
class RankTrace:
    """Content of one rank's ring at the end.

    Attributes:
        events: EVENT, oldest first; their times are on rank 0's monotonic clock.
        tables: names and communicators, by the numbers in the events' keys.
    """

    rank: int
    host: str
    events: Events
    tables: Tables


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The traces of all ranks that have one, in the order of ranks."""

    ranks: tuple[RankTrace, ...]


def load_trace(recording: Recording) -> Trace | None:
    """Read the trace of a recording.

    Args:
        recording: recording of one job.

    Returns:
        The calls of each rank, or None if no trace was kept.

    Raises:
        UsageError: a rank's trace is missing, cut off, foreign or of a newer version.
    """
    shifts = Shifts(recording)
    ranks = tuple(_load(recording, rank, shifts) for rank in recording.ranks if rank.trace_capacity)
    return Trace(ranks) if ranks else None


def _load(recording: Recording, rank: RankRecording, shifts: Shifts) -> RankTrace:
    path = recording.directory / f"rank-{rank.rank:05d}.trace"
    want = (rank.trace_capacity + 1) * EVENT.itemsize
    data = read_bytes(path, want + 1)
    if not data.startswith(_MAGIC[: len(data)]):
        raise UsageError(f"{path} is not a rank's trace: hvprof did not write it")
    version, of_rank = np.frombuffer(data[8:16].ljust(8, b"\0"), "<u4").tolist()
    if len(data) >= 16:
        check_version(path, version)
    if len(data) != want:
        raise UsageError(f"{path} is cut off: {len(data)} of {want} bytes; record again")
    if of_rank != rank.rank:
        raise UsageError(f"{path} is damaged: rank {of_rank}; record again")
    return checked(np.frombuffer(data, EVENT)[1:], recording, rank, shifts, path)


def checked(
    events: Events, recording: Recording, rank: RankRecording, shifts: Shifts, path: Path
) -> RankTrace:
    """Return the calls of a rank in `path`, oldest first and on rank 0's clock.

    Raises:
        UsageError: there are no such calls.
    """
    # 0 means never written, or that a rank was killed while it wrote.
    events = events[events["number"] > 0]
    events = events[np.argsort(events["number"])]
    tables = read_tables(recording.rank_files[rank.rank])
    keys = decode_all(events["key"])
    if (
        (keys["communicator"] >= len(tables.communicators)).any()
        or (keys["source"] >= len(SOURCES)).any()
        or (keys["traffic"] > REGION).any()
        or (np.abs(events["begin_ns"] // 2) > 2**60).any()
    ):
        raise UsageError(f"{path} is damaged: no such call; record again")
    for name in ("begin_ns", "end_ns"):
        events[name] += shifts.of(rank, events[name])
    return RankTrace(rank.rank, rank.host, events, tables)


class Shifts:
    """Return the offset from a rank's clock to rank 0's."""

    def __init__(self, recording: Recording) -> None:
        first = recording.ranks[0]
        self._clock = first.clock
        self._wall_s = first.start_unix_s - first.start_clock_s
        self._offsets = {r.clock: r.clock_offsets for r in recording.ranks if r.clock_offsets}

    def of(self, rank: RankRecording, at_ns: NDArray[np.int64]) -> NDArray[np.int64] | int:
        if rank.clock == self._clock:
            return 0
        offsets = self._offsets.get(rank.clock, ())
        if not offsets:
            # As accurate as the hosts' time of day: a killed rank may have left nothing better.
            return round((rank.start_unix_s - rank.start_clock_s - self._wall_s) * 1e9)
        at_s = at_ns / 1e9
        # Clocks drift by some 10 us a second; between start and end, the drift is linear.
        return np.rint(
            np.interp(at_s, [o.at_s for o in offsets], [o.offset_s for o in offsets]) * 1e9
        ).astype(np.int64)
