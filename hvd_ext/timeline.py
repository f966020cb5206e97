"""The file of a timeline: torch.profiler's record of some steps of a rank.

`hvd_ext.c10d.profiled` writes it in the rank, and hvprof reads it. It is JSON, compressed by gzip.
Times are in ns on the rank's monotonic clock, that of its recorded calls.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_ext.errors import UsageError
from hvd_ext.system.files import atomic_path

FORMAT = 1
SUFFIX = ".timeline"
# Name of a range whose times are also known on the monotonic clock; the range's number follows.
CLOCK_MARK = "hvprof clock "
# Operators run on the CPU. OPTIMIZER is a kernel or an operator within an optimizer's step.
KERNEL, OPTIMIZER, COPY, OPERATOR = KINDS = ("kernel", "optimizer", "copy", "operator")

_MOST_BYTES = 1 << 29
_MOST_NS = 1 << 62
_DEVICE = {"kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": KERNEL}
_LAUNCHES = ("cuda_runtime", "cuda_driver")
# Operators that the recorder counts itself.
_COMMUNICATES = ("c10d::", "gloo:", "nccl:", "mpi:", "record_param_comms")
_OPTIMIZER_STEP = "Optimizer.step#"
_GPU = "GPU "


@dataclass(frozen=True, slots=True)
class Activity:
    """A kernel, a copy or an operator.

    Attributes:
        name: its name in the profiler.
        lane: the stream or thread that it ran in.
        kind: one of KINDS.
        begin_ns, end_ns: its begin and its end.
    """

    name: str
    lane: str
    kind: str
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Some steps of a rank.

    Attributes:
        rank: the rank's number.
        first, last: the first and the last requested step.
        seen: number of steps that ended before the profiler had finished.
        steps: begin and end of each recorded step, from `first` on.
        activities: ordered by begin; kernels and copies if a GPU was used, otherwise operators.
        calls: the rank's traced calls of these steps, in the form of its trace.
    """

    rank: int
    first: int
    last: int
    seen: int
    steps: tuple[tuple[int, int], ...] = ()
    activities: tuple[Activity, ...] = ()
    calls: bytes = b""

    @property
    def on_gpu(self) -> bool:
        """Whether its activities are those of a GPU."""
        return any(one.lane.startswith(_GPU) for one in self.activities)


def activities_of(
    events: Sequence[Mapping[str, Any]], marks: Sequence[tuple[int, int]]
) -> tuple[list[Activity], list[tuple[int, int]]]:
    """Return the activities in a trace of torch.profiler, and the begin and end of each step.

    On a GPU, a step ends with the last kernel that was launched in it, because the host runs ahead.
    The host has waited for the GPU before the first step and after the last one.

    Args:
        events: events of a trace in Chrome's format.
        marks: two for each step, for its begin and its end. A mark is the times on the monotonic
            clock before and after the range CLOCK_MARK with the mark's number, from 0.
    """
    complete = [event for event in events if event.get("ph") == "X"]
    offset_ns = _offset_ns(complete, marks)

    def times_ns(event: Mapping[str, Any]) -> tuple[int, int]:
        begin_ns = round(event["ts"] * 1e3) + offset_ns
        return begin_ns, begin_ns + round(event.get("dur", 0) * 1e3)

    updates = _optimizer_steps([(one["tid"], *times_ns(one)) for one in complete if _steps(one)])
    on_device = [one for one in complete if one.get("cat") in _DEVICE]
    steps = [(begin[1], end[0]) for begin, end in zip(marks[::2], marks[1::2], strict=False)]
    if not on_device:
        return _operators(complete, times_ns, updates), steps
    launches = {
        one["args"]["correlation"]: (one["tid"], times_ns(one)[0])
        for one in complete
        if one.get("cat") in _LAUNCHES and "correlation" in one.get("args", {})
    }
    found, launched_ns = [], []
    for event in on_device:
        args, times = event.get("args", {}), times_ns(event)
        thread, at_ns = launches.get(args.get("correlation"), (None, times[0]))
        kind = _DEVICE[event["cat"]]
        if kind == KERNEL and _is_within(updates.get(thread, []), at_ns):
            kind = OPTIMIZER
        lane = f"{_GPU}{args.get('device', 0)}, stream {args.get('stream', event.get('tid'))}"
        found.append(Activity(event["name"], lane, kind, *times))
        launched_ns.append(at_ns)
    for number in range(len(steps) - 1):
        begin_ns, end_ns = steps[number]
        ends = [
            one.end_ns
            for one, at_ns in zip(found, launched_ns, strict=True)
            if begin_ns <= at_ns <= end_ns
        ]
        border_ns = min(max([*ends, begin_ns]), steps[-1][1])
        steps[number] = (begin_ns, border_ns)
        steps[number + 1] = (border_ns, steps[number + 1][1])
    return sorted(found, key=lambda one: one.begin_ns), steps


def _offset_ns(events: Sequence[Mapping[str, Any]], marks: Sequence[tuple[int, int]]) -> int:
    """Return the monotonic clock less the profiler's, from the mark that took the shortest time."""
    offsets = []
    for event in events:
        name = str(event.get("name"))
        if name.startswith(CLOCK_MARK) and event.get("cat") == "user_annotation":
            before_ns, after_ns = marks[int(name.removeprefix(CLOCK_MARK))]
            lasted_ns = event["dur"] * 1e3
            middle_ns = event["ts"] * 1e3 + lasted_ns / 2
            offset_ns = (before_ns + after_ns) / 2 - middle_ns
            offsets.append((after_ns - before_ns - lasted_ns, round(offset_ns)))
    return min(offsets)[1] if offsets else 0


def _steps(event: Mapping[str, Any]) -> bool:
    return str(event["name"]).startswith(_OPTIMIZER_STEP) and event.get("cat") != (
        "gpu_user_annotation"
    )


def _optimizer_steps(found: list[tuple[Any, int, int]]) -> dict[Any, list[tuple[int, int]]]:
    """Return, by thread, the steps of optimizers that contain no other step.

    The step of a DistributedOptimizer contains that of the optimizer, after a wait.
    """
    by_thread: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for thread, begin_ns, end_ns in sorted(found, key=lambda one: (one[1], -one[2])):
        kept = by_thread[thread]
        if kept and begin_ns < kept[-1][1]:
            kept.pop()
        kept.append((begin_ns, end_ns))
    return by_thread


def _is_within(ranges: list[tuple[int, int]], at_ns: int) -> bool:
    place = bisect_right(ranges, (at_ns, _MOST_NS)) - 1
    return place >= 0 and at_ns <= ranges[place][1]


def _operators(
    events: Sequence[Mapping[str, Any]],
    times_ns: Any,
    updates: Mapping[Any, list[tuple[int, int]]],
) -> list[Activity]:
    """Return the operators that no other operator of their thread has called."""
    timed = [(*times_ns(one), one) for one in events if one.get("cat") == "cpu_op"]
    until_ns: dict[Any, int] = {}
    found = []
    for begin_ns, end_ns, event in sorted(timed, key=lambda one: (one[0], -one[1])):
        thread, name = event["tid"], event["name"]
        if begin_ns < until_ns.get(thread, begin_ns):
            continue
        until_ns[thread] = end_ns
        if name.startswith(_COMMUNICATES):
            continue
        kind = OPTIMIZER if _is_within(updates.get(thread, []), begin_ns) else OPERATOR
        found.append(Activity(name, f"thread {thread}", kind, begin_ns, end_ns))
    return found


def write(path: Path, timeline: Timeline) -> None:
    """Write a timeline, whole or not at all.

    Raises:
        HvdExtError: it cannot be written.
    """
    names: dict[str, int] = {}
    rows = [
        (
            names.setdefault(one.name, len(names)),
            names.setdefault(one.lane, len(names)),
            KINDS.index(one.kind),
            one.begin_ns,
            one.end_ns - one.begin_ns,
        )
        for one in timeline.activities
    ]
    content = {
        "format": FORMAT,
        **{name: getattr(timeline, name) for name in ("rank", "first", "last", "seen", "steps")},
        "names": list(names),
        "activities": rows,
        "calls": base64.b64encode(timeline.calls).decode(),
    }
    with atomic_path(path) as temporary:
        temporary.write_bytes(gzip.compress(json.dumps(content).encode()))


def read(path: Path) -> Timeline:
    """Read a timeline.

    Raises:
        UsageError: it cannot be read, is damaged, or has a newer version.
    """
    try:
        with gzip.open(path) as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise UsageError(f"{path} has more than {_MOST_BYTES} bytes: record fewer steps")
        content = json.loads(data)
        version = content["format"]
        if isinstance(version, int) and version > FORMAT:
            raise UsageError(f"{path} is of a newer hvprof: read it with that")
        return _checked(content)
    except (OSError, EOFError, zlib.error, binascii.Error, RecursionError) as error:
        raise UsageError(f"{path} is damaged: {error}; record again, or remove it") from None
    except (ValueError, KeyError, TypeError, IndexError):
        raise UsageError(f"{path} is damaged: it is not a timeline; record again") from None


def _checked(content: Mapping[str, Any]) -> Timeline:
    names = content["names"]
    _require(all(isinstance(name, str) for name in names))
    numbers = {name: content[name] for name in ("rank", "first", "last", "seen")}
    _require(all(type(one) is int and 0 <= one < _MOST_NS for one in numbers.values()))
    found = []
    for row in content["activities"]:
        _require(len(row) == 5 and all(type(one) is int and 0 <= one < _MOST_NS for one in row))
        name, lane, kind, begin_ns, lasted_ns = row
        found.append(
            Activity(names[name], names[lane], KINDS[kind], begin_ns, begin_ns + lasted_ns)
        )
    edges = [edge for step in content["steps"] for edge in step]
    _require(all(len(step) == 2 for step in content["steps"]))
    _require(all(type(edge) is int and 0 <= edge < _MOST_NS for edge in edges))
    _require(edges == sorted(edges) and len(edges) <= 2 * (numbers["last"] + 1))
    steps = tuple((begin_ns, end_ns) for begin_ns, end_ns in content["steps"])
    calls = base64.b64decode(content["calls"], validate=True)
    return Timeline(**numbers, steps=steps, activities=tuple(found), calls=calls)


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError
