"""The time of a profiled step by its parts, and the overlaps of these.

Each part is the union of intervals: two kernels of one part that run at the same time count once. A
part is hidden while compute or the optimizer runs, and the step is idle while no part runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from hvd_ext.timeline import COPY, KERNEL, OPERATOR, OPTIMIZER, Activity
from hvprof.format.key import REGION, SOURCES, TRAFFIC, decode
from hvprof.format.timelines import RankTimeline, load_timelines
from hvprof.format.trace import RankTrace
from hvprof.model import Recording

COMPUTE, UPDATE, HALO, ALLREDUCE, COPIES = PARTS = (
    *("compute", "optimizer", "halo", "allreduce", "copies"),
)
_OF_KIND = {KERNEL: COMPUTE, OPERATOR: COMPUTE, OPTIMIZER: UPDATE, COPY: COPIES}
# hvd_ext's kernels: arena/cuda/reduce.cu and spatial/exchange/device/move.cu.
_REDUCING = ("nccl", "reduce_float32", "reduce_float16", "reduce_bfloat16")
_MOVES_HALOS = "move"
_MESSAGES = ("send", "recv", "sendrecv", "probe", "halo", "neighbor")
_WAITS = ("wait", "test")

Interval = tuple[int, int]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a step: the time in which it ran, and the part of that which was hidden.

    Attributes:
        time_s: time in which it ran.
        hidden_s: the part of that time in which compute or the optimizer also ran; for these two,
            the part in which the other one ran.
    """

    time_s: float
    hidden_s: float


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """A step of a rank, or a mean of steps.

    Attributes:
        rank: the rank's number; -1 for a mean over ranks.
        step: its number, from 1; 0 for a mean over steps.
        time_s: time from begin to end.
        idle_s: time in which no part ran.
        parts: parts by name, in the order of PARTS.
        overlaps: time in which two parts ran together, by both names with " and " between them.
        busy: for a single step, the intervals of each part, in s from the step's begin.
    """

    rank: int
    step: int
    time_s: float
    idle_s: float
    parts: Mapping[str, Part]
    overlaps: Mapping[str, float]
    busy: Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class StepTimelines:
    """The profiled steps of all ranks that have any.

    Attributes:
        on_gpu: whether kernels of GPUs are shown, and not operators of CPUs.
        steps: steps of all ranks, in the order of ranks.
        mean: mean of all steps.
        by_rank: the mean of each rank's steps.
    """

    on_gpu: bool
    steps: tuple[StepTimeline, ...]
    mean: StepTimeline
    by_rank: tuple[StepTimeline, ...]


def step_timelines(recording: Recording) -> StepTimelines | None:
    """Return the profiled steps; None if there are none.

    Raises:
        UsageError: as in `load_timelines`.
    """
    found = load_timelines(recording)
    by_rank = [steps for one in found if (steps := steps_of(one))]
    if not by_rank:
        return None
    means = tuple(_mean(steps, steps[0].rank) for steps in by_rank)
    return StepTimelines(
        on_gpu=any(one.timeline.on_gpu for one in found),
        steps=tuple(step for steps in by_rank for step in steps),
        mean=_mean(means, -1),
        by_rank=means,
    )


def part_of(activity: Activity) -> str:
    """Return the part to which a kernel, copy or operator belongs."""
    name = activity.name.lower()
    if activity.kind in (KERNEL, OPTIMIZER):
        if name.startswith(_REDUCING):
            return ALLREDUCE
        if name == _MOVES_HALOS or "halo" in name:
            return HALO
    return _OF_KIND[activity.kind]


def steps_of(rank: RankTimeline) -> list[StepTimeline]:
    """Return the steps of a rank; time in which a thread is blocked is not its operators'."""
    timeline = rank.timeline
    # By part and thread, because an operator is interrupted by the waits of its own thread.
    found: dict[tuple[str, str], list[Interval]] = defaultdict(list)
    for one in timeline.activities:
        found[part_of(one), one.lane].append((one.begin_ns, one.end_ns))
    blocked: dict[str, list[Interval]] = defaultdict(list)
    for part, thread, blocks, interval in _calls(rank.calls):
        if part:
            found[part, "calls"].append(interval)
        if blocks and not timeline.on_gpu:
            blocked[f"thread {thread}"].append(interval)
    everything = [*timeline.steps, *_flat(found.values()), *_flat(blocked.values())]
    points = np.unique(np.array(everything, np.int64))
    masks = {part: np.zeros(len(points) - 1, bool) for part in PARTS}
    for (part, lane), intervals in found.items():
        mask = _mask(points, intervals)
        if lane in blocked:
            mask &= ~_mask(points, blocked[lane])
        masks[part] |= mask
    return [
        _step(timeline.rank, timeline.first + index, points, masks, step)
        for index, step in enumerate(timeline.steps)
        if step[1] > step[0]
    ]


def _flat(groups: Iterable[list[Interval]]) -> Iterable[Interval]:
    return (one for group in groups for one in group)


def _calls(trace: RankTrace) -> Iterable[tuple[str, int, bool, Interval]]:
    """Return for each call its part ("" for none), thread, whether it blocked, and its time."""
    names = trace.tables.names
    kinds = {key: decode(key) for key in np.unique(trace.events["key"]).tolist()}
    operations = {names[kind.operation] for kind in kinds.values() if kind.traffic < REGION}
    messages = any(name.lstrip("i").startswith(_MESSAGES) for name in operations)
    for event in trace.events.tolist():
        _, begin_ns, end_ns, _, key, _, _, thread, _, _ = event
        kind, interval = kinds[key], (begin_ns, max(begin_ns, end_ns))
        if kind.traffic == REGION:
            blocks = names[kind.algorithm] == "communication"
            yield "", thread, blocks, interval
            continue
        if kind.traffic > REGION or TRAFFIC[kind.traffic] != "data":
            continue
        operation = names[kind.operation].lstrip("i")
        # A wait may be for messages or collectives: it counts for messages if there are any.
        sends = operation.startswith(_MESSAGES) or (messages and operation.startswith(_WAITS))
        blocks = SOURCES[kind.source] == "mpi"
        yield HALO if sends else ALLREDUCE, thread, blocks, interval


def _mask(points: NDArray[np.int64], intervals: Sequence[Interval]) -> Mask:
    """Whether any of the intervals covers the time between each point and the next one."""
    depth = np.zeros(len(points), np.int64)
    edges = np.array(intervals, np.int64).reshape(-1, 2)
    np.add.at(depth, np.searchsorted(points, edges[:, 0]), 1)
    np.add.at(depth, np.searchsorted(points, edges[:, 1]), -1)
    covered: Mask = np.cumsum(depth)[:-1] > 0
    return covered


def _step(
    rank: int, number: int, points: NDArray[np.int64], masks: Mapping[str, Mask], step: Interval
) -> StepTimeline:
    first, last = np.searchsorted(points, step)
    edges = (points[first : last + 1] - step[0]) / 1e9
    lasted_s = np.diff(edges)
    within = {part: mask[first:last] for part, mask in masks.items()}

    def seconds(mask: Mask) -> float:
        return float(lasted_s[mask].sum())

    def hidden(part: str) -> Mask:
        return within[part] & np.any([within[p] for p in (COMPUTE, UPDATE) if p != part], axis=0)

    return StepTimeline(
        rank,
        number,
        time_s=(step[1] - step[0]) / 1e9,
        idle_s=seconds(~np.any(list(within.values()), axis=0)),
        parts={part: Part(seconds(within[part]), seconds(hidden(part))) for part in PARTS},
        overlaps={
            f"{one} and {other}": both_s
            for one, other in combinations(PARTS, 2)
            if (both_s := seconds(within[one] & within[other]))
        },
        busy={part: _pieces(edges, mask) for part, mask in within.items() if mask.any()},
    )


def _pieces(edges: NDArray[np.float64], mask: Mask) -> list[tuple[float, float]]:
    """Return the longest intervals that a mask covers."""
    changes = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    return [(float(edges[a]), float(edges[b])) for a, b in changes.reshape(-1, 2)]


def _mean(steps: Sequence[StepTimeline], rank: int) -> StepTimeline:
    count = len(steps)
    pairs = {pair for step in steps for pair in step.overlaps}
    return StepTimeline(
        rank,
        0,
        time_s=sum(step.time_s for step in steps) / count,
        idle_s=sum(step.idle_s for step in steps) / count,
        parts={
            part: Part(
                sum(step.parts[part].time_s for step in steps) / count,
                sum(step.parts[part].hidden_s for step in steps) / count,
            )
            for part in PARTS
        },
        overlaps={
            pair: sum(step.overlaps.get(pair, 0.0) for step in steps) / count
            for pair in (f"{one} and {other}" for one, other in combinations(PARTS, 2))
            if pair in pairs
        },
        busy={},
    )
