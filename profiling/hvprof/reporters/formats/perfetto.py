"""A trace as a file that Perfetto and Chrome open."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hvd_ext.errors import UsageError
from hvd_ext.system.files import atomic_path
from hvd_ext.timeline import Timeline
from hvprof.analysis.timeline import part_of
from hvprof.format.key import REGION, SOURCES, TRAFFIC, decode
from hvprof.format.timelines import load_timelines
from hvprof.format.trace import RankTrace, load_trace
from hvprof.model import Recording

# Exchanges of hvd_ext may overlap calls of its threads, and blocked times of a thread lie
# across its regions: they get separate tracks.
_TRACKS = {1: "hvd_ext", 2: "exposed"}
_HVD_EXT, _EXPOSED = _TRACKS
# Beyond the numbers of threads, which Linux gives.
_FIRST_LANE = 1 << 23


def write_chrome(recording: Recording, path: Path) -> int:
    """Write the trace as Chrome's JSON: a process for each rank, a track for each thread.

    Returns:
        How many calls, regions, steps, kernels and operators are in it.

    Raises:
        UsageError: nothing was traced.
        HvdExtError: the file cannot be written.
    """
    trace, timelines = load_trace(recording), load_timelines(recording)
    if trace is None and not timelines:
        raise UsageError(
            f"{recording.directory} has no trace: record one with hvprof record --trace 100000"
        )
    ranks = {rank.rank: rank for rank in trace.ranks} if trace else {}
    profiled = {one.timeline.rank: one.timeline for one in timelines}
    for one in timelines:
        ranks[one.calls.rank] = _together(one.calls, ranks.get(one.calls.rank))
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        lines = (json.dumps(event) for event in _chrome_events(ranks, profiled))
        file.write(next(lines))
        for line in lines:
            file.write(f",\n{line}")
        file.write("\n]}\n")
    activities = sum(len(one.activities) for one in profiled.values())
    return activities + sum(len(rank.events) for rank in ranks.values())


def _together(kept: RankTrace, ring: RankTrace | None) -> RankTrace:
    """The calls of the profiled steps and those that a rank's trace holds, each once."""
    if ring is None:
        return kept
    events = np.concatenate([kept.events, ring.events])
    _, first = np.unique(events["number"], return_index=True)
    return replace(ring, events=events[first])


def _chrome_events(
    ranks: Mapping[int, RankTrace], profiled: Mapping[int, Timeline]
) -> Iterator[dict[str, Any]]:
    begins = [rank.events["begin_ns"].min() for rank in ranks.values() if len(rank.events)]
    begins += [one.begin_ns for timeline in profiled.values() for one in timeline.activities[:1]]
    begins += [timeline.steps[0][0] for timeline in profiled.values()]
    start_ns = int(min(begins, default=0))
    for _, rank in sorted(ranks.items()):
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
        if timeline := profiled.get(rank.rank):
            yield from _profiled_events(timeline, start_ns)


def _profiled_events(timeline: Timeline, start_ns: int) -> Iterator[dict[str, Any]]:
    """The steps of a timeline, and a track for each of its streams, or threads."""
    lanes = sorted({one.lane for one in timeline.activities})
    tracks = {lane: number for number, lane in enumerate(lanes, start=_FIRST_LANE + 1)}
    for lane, track in {"profiled steps": _FIRST_LANE, **tracks}.items():
        name = lane if lane.startswith("GPU") or track == _FIRST_LANE else f"operators, {lane}"
        yield {
            **{"name": "thread_name", "ph": "M", "pid": timeline.rank, "tid": track},
            "args": {"name": name},
        }
    pieces = [
        *(
            (f"step {number}", "step", _FIRST_LANE, *step)
            for number, step in enumerate(timeline.steps, start=timeline.first)
        ),
        *(
            (one.name, part_of(one), tracks[one.lane], one.begin_ns, one.end_ns)
            for one in timeline.activities
        ),
    ]
    for name, part, track, begin_ns, end_ns in pieces:
        yield {
            "name": name,
            "cat": part,
            "ph": "X",
            "ts": (begin_ns - start_ns) / 1e3,
            "dur": (end_ns - begin_ns) / 1e3,
            "pid": timeline.rank,
            "tid": track,
            "args": {"part": part},
        }


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
