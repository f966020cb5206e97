"""The calls of a trace, on one clock; and as a file that Perfetto and Chrome open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_ext.errors import UsageError
from hvprof.format.reader import SOURCES, TRAFFIC, VERSION, Tables, read_bytes, read_tables
from hvprof.output import whole_file
from hvprof.recording.model import RankRecording, Recording

EVENT = np.dtype(
    [
        ("number", "<u8"),
        ("begin_ns", "<i8"),
        ("end_ns", "<i8"),
        ("wait_ns", "<i8"),
        ("key", "<u8"),
        ("bytes", "<u8"),
        ("sequence", "<u4"),
        ("thread", "<u4"),
        ("peer", "<i4"),
        ("reserved", "<u4"),
    ]
)
_MAGIC = b"hvtrace\n"
# What hvd_ext reports may lie across what its threads call: it gets a track of its own.
_OWN_TRACK = 1

Events = NDArray[np.void]


@dataclass(frozen=True, slots=True, eq=False)
class RankTrace:
    """What one rank's ring held at the end.

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
    """The traces of all ranks that kept one, in the order of ranks."""

    ranks: tuple[RankTrace, ...]


def load_trace(recording: Recording) -> Trace | None:
    """Read the trace of a recording, or None if none was kept.

    Raises:
        UsageError: a rank's trace is missing, cut off, foreign or of a newer version.
    """
    shifts = _Shifts(recording)
    ranks = tuple(_load(recording, rank, shifts) for rank in recording.ranks if rank.trace_capacity)
    return Trace(ranks) if ranks else None


def write_chrome(recording: Recording, path: Path) -> int:
    """Write the trace as Chrome's JSON: a process for each rank, a track for each thread.

    Returns:
        How many calls, regions and steps are in it.

    Raises:
        UsageError: nothing was traced, or the file cannot be written.
    """
    trace = load_trace(recording)
    if trace is None:
        raise UsageError(
            f"{recording.directory} has no trace: record one with hvprof record --trace 100000"
        )
    with whole_file(path) as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        lines = (json.dumps(event) for event in _chrome_events(trace))
        file.write(next(lines))
        for line in lines:
            file.write(f",\n{line}")
        file.write("\n]}\n")
    return sum(len(rank.events) for rank in trace.ranks)


def _chrome_events(trace: Trace) -> Iterator[dict[str, Any]]:
    filled = [rank.events["begin_ns"].min() for rank in trace.ranks if len(rank.events)]
    start_ns = min(filled, default=0)
    for rank in trace.ranks:
        name = f"rank {rank.rank} ({rank.host})"
        yield {"name": "process_name", "ph": "M", "pid": rank.rank, "args": {"name": name}}
        yield {
            "name": "process_sort_index",
            "ph": "M",
            "pid": rank.rank,
            "args": {"sort_index": rank.rank},
        }
        yield {
            "name": "thread_name",
            "ph": "M",
            "pid": rank.rank,
            "tid": _OWN_TRACK,
            "args": {"name": "hvd_ext"},
        }
        for event in rank.events.tolist():
            yield _chrome_event(rank, event, start_ns)


def _chrome_event(rank: RankTrace, event: tuple[int, ...], start_ns: int) -> dict[str, Any]:
    _, begin_ns, end_ns, wait_ns, key, message_bytes, sequence, thread, peer, _ = event
    names = rank.tables.names
    traffic, source = TRAFFIC[key >> 24 & 3], SOURCES[key >> 26 & 3]
    details: dict[str, Any] = {}
    if traffic == "region":
        details["kind"] = names[key >> 8 & 0xFF]
    else:
        communicator = rank.tables.communicators[key >> 36 & 0xFF]
        details = {"bytes": message_bytes, "algorithm": names[key >> 8 & 0xFF]}
        if key >> 28 & 0xFF:
            details["datatype"] = names[key >> 28 & 0xFF]
        details["ranks"] = communicator.size
        if communicator.id:
            details["communicator"] = communicator.name or communicator.id
        if sequence:
            details["sequence"] = sequence
        if peer >= 0:
            details["peer"] = peer
        if wait_ns:
            details["wait_us"] = wait_ns / 1e3
    return {
        "name": names[key & 0xFF],
        "cat": traffic,
        "ph": "X",
        "ts": (begin_ns - start_ns) / 1e3,
        "dur": max(0, end_ns - begin_ns) / 1e3,
        "pid": rank.rank,
        "tid": _OWN_TRACK if source == "hvd_ext" else thread,
        "args": details,
    }


def _load(recording: Recording, rank: RankRecording, shifts: _Shifts) -> RankTrace:
    path = recording.directory / f"rank-{rank.rank:05d}.trace"
    want = (rank.trace_capacity + 1) * EVENT.itemsize
    data = read_bytes(path, want + 1)
    if not data.startswith(_MAGIC[: len(data)]):
        raise UsageError(f"{path} is no trace of a rank: hvprof did not write it")
    version, of_rank = np.frombuffer(data[8:16].ljust(8, b"\0"), "<u4").tolist()
    if len(data) >= 16 and version > VERSION:
        raise UsageError(f"{path} has format {version}, this hvprof reads {VERSION}: update it")
    if len(data) != want:
        raise UsageError(f"{path} is cut off: {len(data)} of {want} bytes; record again")
    if version < VERSION or of_rank != rank.rank:
        raise UsageError(f"{path} is damaged: format {version}, rank {of_rank}; record again")
    events = np.frombuffer(data, EVENT)[1:]
    # 0: never written, or a rank was killed while it wrote.
    events = events[events["number"] > 0]
    events = events[np.argsort(events["number"])]
    tables = read_tables(recording.rank_files[rank.rank])
    traffic = events["key"] >> np.uint64(24) & np.uint64(15)
    if (
        (events["key"] >> np.uint64(36) & np.uint64(0xFF) >= len(tables.communicators)).any()
        or (traffic >> np.uint64(2) >= len(SOURCES)).any()
        or (np.abs(events["begin_ns"] // 2) > 2**60).any()
    ):
        raise UsageError(f"{path} is damaged: no such call; record again")
    for name in ("begin_ns", "end_ns"):
        events[name] += shifts.of(rank, events[name])
    return RankTrace(rank.rank, rank.host, events, tables)


class _Shifts:
    """What is to be added to the times of a rank, to have them on rank 0's clock."""

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
            # As good as the hosts' time of day: all that a killed rank may have left.
            return round((rank.start_unix_s - rank.start_clock_s - self._wall_s) * 1e9)
        at_s = at_ns / 1e9
        # Clocks drift by some 10 us a second: between start and end that is a line.
        return np.rint(
            np.interp(at_s, [o.at_s for o in offsets], [o.offset_s for o in offsets]) * 1e9
        ).astype(np.int64)
