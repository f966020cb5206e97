"""The step, or the run where no steps are marked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from hvd_ext.units import counted, format_seconds
from hvprof.analysis.analysis import Analysis
from hvprof.analysis.causes.finding import in_background
from hvprof.analysis.contention import parts_by_rank
from hvprof.model import Recording
from hvprof.reporters.header import STEP_PARTS
from hvprof.reporters.page import svg
from hvprof.reporters.page.sections.base import (
    BAD,
    COMPUTE,
    CONTROL,
    DATA,
    GOOD,
    INPUT,
    WAIT,
    Figure,
    Page,
    Section,
    grouped,
    ranks_title,
)
from hvprof.reporters.page.svg import Axis, Series

_MOST_OPERATIONS = 8


def section(page: Page) -> Section:
    """Time of a step by part, and its hidden communication."""
    analysis, recording = page.analysis, page.analysis.recording
    figures = [
        *_step_time(analysis),
        *_overlap(recording),
        *_regions(recording),
    ]
    return Section("The step" if recording.all_steps else "The run", figures)


def _step_time(analysis: Analysis) -> Iterator[Figure]:
    """Parts of a step, for ranks that mark steps; else of the run."""
    recording = analysis.recording
    step = recording.all_steps
    mean = analysis.step_parts
    if step is None or mean is None:
        yield from _run_time(analysis)
        return
    ranks = [(f"rank {rank}", parts) for rank, parts in parts_by_rank(recording).items()]
    slowest = sorted(ranks, key=lambda one: -one[1].time_s)[:5]
    shown = [("mean", mean), *slowest]
    colors = (COMPUTE, BAD, DATA, INPUT, WAIT, CONTROL)
    series = [
        Series(name, values, color)
        for (name, key), color in zip(STEP_PARTS.items(), colors, strict=True)
        if any(values := [getattr(one, key) for _, one in shown])
    ]
    chart = svg.bars("time of a step", [name for name, _ in shown], series, format_seconds)
    contention = (
        "Slowed by communication: it could have run, but threads that communicate had its core. "
        "Waiting for a core: other threads had it."
        if mean.slowed_s is not None
        else "The kernel does not count CPU contention: it is part of compute."
    )
    yield Figure(
        "steps",
        "Where a step's time goes",
        f"Mean of {counted(step.index, 'step')} of the training thread: over all ranks, and for "
        f"the {len(slowest)} slowest. In exposed communication the thread was blocked on it. "
        f"{contention}",
        chart,
    )


def _overlap(recording: Recording) -> Iterator[Figure]:
    """Hidden against exposed communication, rank by rank."""
    found = [(rank.rank, rank.all_steps) for rank in recording.ranks if rank.all_steps]
    step = recording.all_steps
    if not found or step is None or step.overlap_percent is None:
        return
    hidden = [(rank, sums.overlapped_s / max(sums.index, 1)) for rank, sums in found]
    blocked = [(rank, sums.exposed_s / max(sums.index, 1)) for rank, sums in found]
    names, (hidden_s, blocked_s) = grouped(hidden, blocked)
    chart = svg.columns(
        "overlap",
        names,
        [Series("exposed", blocked_s, DATA), Series("hidden", hidden_s, GOOD)],
        Axis("a step", format_seconds),
        ranks_title(len(found), names),
    )
    yield Figure(
        "overlap",
        f"Overlap: {step.overlap_percent:.0f} % of the communication is hidden",
        "Hidden communication ran while the training thread did something else; during exposed "
        "communication it was blocked. The overlap is the hidden share of what was communicated, "
        "not of the step. Hidden is not free: it needs cores.",
        chart,
    )


def _regions(recording: Recording) -> Iterator[Figure]:
    """The parts that the program named."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    colors: dict[str, int] = {}
    by_kind = {"compute": COMPUTE, "communication": DATA, "io": INPUT}
    for rank in recording.ranks:
        for region in rank.regions:
            sums[region.name][0] += region.time_s / len(recording.ranks)
            colors[region.name] = by_kind.get(region.kind, CONTROL)
    if not sums:
        return
    order = sorted(sums, key=lambda name: -sums[name][0])[:12]
    kinds = [("compute", COMPUTE), ("communication", DATA), ("io", INPUT), ("other", CONTROL)]
    series = [
        Series(kind, [sums[name][0] if colors[name] == color else None for name in order], color)
        for kind, color in kinds
        if color in {colors[name] for name in order}
    ]
    yield Figure(
        "regions",
        "Regions named by the program",
        "Time of a rank between the begin and the end of each hvprof.region, as a mean over "
        "the ranks. A region within another counts in both.",
        svg.bars("regions", order, series, format_seconds),
    )


def _run_time(analysis: Analysis) -> Iterator[Figure]:
    """The run of a program without steps, and its largest operations."""
    if in_background(analysis.recording):
        yield from _background_time(analysis)
        return
    by_operation: dict[str, float] = defaultdict(float)
    for row in analysis.rows["data"]:
        by_operation[row.operation] += row.time_s
    largest = sorted(by_operation, key=lambda name: -by_operation[name])[:_MOST_OPERATIONS]
    names = ["run", *largest]
    run: list[float | None] = [analysis.shares.run_s, *(None for _ in largest)]
    calls: list[float | None] = [None, *(by_operation[name] for name in largest)]
    yield Figure(
        "run",
        "The run, and its largest operations",
        "These are a rank's times, as a mean over the ranks. The time of an operation includes "
        "waiting for other ranks; that of a non-blocking one (i...) is the time to start it.",
        svg.bars(
            "the run",
            names,
            [Series("run", run, COMPUTE), Series("operations", calls, DATA)],
            format_seconds,
        ),
    )


def _background_time(analysis: Analysis) -> Iterator[Figure]:
    total_s, blocked_s = analysis.shares.run_s, analysis.shares.exposed_s
    times = {kind: sum(row.time_s for row in analysis.rows[kind]) for kind in ("data", "control")}
    known = {
        "run": total_s,
        **({} if blocked_s is None else {"exposed": blocked_s}),
        "data traffic": times["data"],
        "control traffic": times["control"],
    }
    colors = {"run": COMPUTE, "exposed": BAD, "data traffic": DATA, "control traffic": CONTROL}
    series = [
        Series(name, [value if row == name else None for row in known], colors[name])
        for name, value in known.items()
    ]
    yield Figure(
        "run",
        "The run, and its time in communication",
        "These are a rank's times, as a mean over the ranks. Data and control run on separate "
        "threads, so they overlap with each other and with computation. Mark steps with "
        "hvprof.step() to see what is hidden.",
        svg.bars("the run", list(known), series, format_seconds),
    )
