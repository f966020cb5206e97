"""A trace as a file that Perfetto and Chrome open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvd_ext.errors import UsageError
from hvd_ext.system.files import atomic_path
from hvprof.format.key import REGION, SOURCES, TRAFFIC, decode
from hvprof.format.trace import RankTrace, Trace, load_trace
from hvprof.model import Recording

# Exchanges of hvd_ext may overlap calls of its threads, and blocked times of a thread lie
# across its regions: they get separate tracks.
_TRACKS = {1: "hvd_ext", 2: "exposed"}
_HVD_EXT, _EXPOSED = _TRACKS


def write_chrome(recording: Recording, path: Path) -> int:
    """Write the trace as Chrome's JSON: a process for each rank, a track for each thread.

    Returns:
        How many calls, regions and steps are in it.

    Raises:
        UsageError: nothing was traced.
        HvdExtError: the file cannot be written.
    """
    trace = load_trace(recording)
    if trace is None:
        raise UsageError(
            f"{recording.directory} has no trace: record one with hvprof record --trace 100000"
        )
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
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
        for track, name in _TRACKS.items():
            yield {
                "name": "thread_name",
                "ph": "M",
                "pid": rank.rank,
                "tid": track,
                "args": {"name": name},
            }
        for event in rank.events.tolist():
            yield _chrome_event(rank, event, start_ns)


def _chrome_event(rank: RankTrace, event: tuple[int, ...], start_ns: int) -> dict[str, Any]:
    _, begin_ns, end_ns, wait_ns, key, message_bytes, sequence, thread, peer, _ = event
    names, kind = rank.tables.names, decode(key)
    details: dict[str, Any] = {}
    track = _HVD_EXT if SOURCES[kind.source] == "hvd_ext" else thread
    if kind.traffic == REGION:
        details["kind"] = names[kind.algorithm]
        track = _EXPOSED if details["kind"] == "communication" else thread
    else:
        communicator = rank.tables.communicators[kind.communicator]
        details = {"bytes": message_bytes, "algorithm": names[kind.algorithm]}
        if kind.datatype:
            details["datatype"] = names[kind.datatype]
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
        "name": names[kind.operation],
        "cat": "region" if kind.traffic == REGION else TRAFFIC[kind.traffic],
        "ph": "X",
        "ts": (begin_ns - start_ns) / 1e3,
        "dur": max(0, end_ns - begin_ns) / 1e3,
        "pid": rank.rank,
        "tid": track,
        "args": details,
    }
