"""Reads the timelines that torch.profiler recorded, on the clock of rank 0."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hvd_ext.errors import UsageError
from hvd_ext.timeline import SUFFIX, Timeline, read
from hvprof.format.layout import EVENT
from hvprof.format.trace import RankTrace, Shifts, checked
from hvprof.model import RankRecording, Recording
from hvprof.printable import printable


@dataclass(frozen=True, slots=True, eq=False)
class RankTimeline:
    """Some steps of a rank: the activities, and the calls of that time."""

    timeline: Timeline
    calls: RankTrace


def load_timelines(recording: Recording) -> tuple[RankTimeline, ...]:
    """Read the timelines of those ranks that have recorded a step, in the order of ranks.

    Raises:
        UsageError: a file is damaged, foreign or of a newer version.
    """
    shifts = Shifts(recording)
    found = (_load(recording, rank, shifts) for rank in recording.ranks)
    return tuple(one for one in found if one is not None)


def _load(recording: Recording, rank: RankRecording, shifts: Shifts) -> RankTimeline | None:
    file = recording.rank_files.get(rank.rank)  # none if a recording was made in memory
    if file is None or not (path := file.with_suffix(SUFFIX)).exists():
        return None
    timeline = read(path)
    if timeline.rank != rank.rank:
        raise UsageError(f"{path} is damaged: rank {timeline.rank}; record again, or remove it")
    if len(timeline.calls) % EVENT.itemsize:
        raise UsageError(f"{path} is damaged: a call is cut off; record again, or remove it")
    if not timeline.steps:
        return None
    events = np.frombuffer(timeline.calls, EVENT)
    calls = checked(events, recording, rank, shifts, path)
    begin_ns = timeline.steps[0][0]
    shift_ns = int(np.sum(shifts.of(rank, np.array([begin_ns], np.int64))))
    moved = replace(
        timeline,
        steps=tuple((begin + shift_ns, end + shift_ns) for begin, end in timeline.steps),
        activities=tuple(
            replace(
                one,
                name=printable(one.name),
                lane=printable(one.lane),
                begin_ns=one.begin_ns + shift_ns,
                end_ns=one.end_ns + shift_ns,
            )
            for one in timeline.activities
        ),
    )
    return RankTimeline(moved, calls)
