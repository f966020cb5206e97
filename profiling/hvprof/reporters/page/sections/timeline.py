"""The profiled steps: when each part of a step ran, and for how long."""

from __future__ import annotations

from hvd_ext.units import counted, format_seconds
from hvprof.analysis.timeline import (
    ALLREDUCE,
    COMPUTE,
    COPIES,
    HALO,
    PARTS,
    UPDATE,
    StepTimeline,
    StepTimelines,
)
from hvprof.reporters.page import lanes
from hvprof.reporters.page.sections import base
from hvprof.reporters.page.sections.base import Figure, Page, Section, Table
from hvprof.reporters.timeline import ALONE, NOTE, example_steps, overlaps_text, shown_ranks, title

COLORS = {
    COMPUTE: base.COMPUTE,
    UPDATE: base.GOOD,
    HALO: base.INPUT,
    ALLREDUCE: base.DATA,
    COPIES: base.WAIT,
}
_MOST_STEPS = 4


def section(page: Page) -> Section:
    """A step of each of the first ranks, and the times of its parts by rank."""
    found = page.analysis.timeline
    if found is None:
        return Section("Timeline", [])
    return Section("Timeline", [_figure(found)], [_table(found)])


def _figure(found: StepTimelines) -> Figure:
    steps = example_steps(found, _MOST_STEPS)
    more = len(found.by_rank) - len(steps)
    caption = "The step of median time of each rank" + (
        f"; {counted(more, 'more rank')} in the table." if more else "."
    )
    if overlaps := overlaps_text(found):
        caption += f" At once, mean over steps and ranks: {overlaps}."
    rows = [(name(step), step.time_s, step.busy) for step in steps]
    return Figure("timeline", title(found), caption, lanes.lanes("timeline", rows, COLORS))


def name(step: StepTimeline) -> str:
    """A step's heading."""
    idle = f"{100 * step.idle_s / step.time_s:.0f} % idle"
    return f"rank {step.rank}, step {step.step}: {format_seconds(step.time_s)}, {idle}"


def _table(found: StepTimelines) -> Table:
    shown = [part for part in PARTS if found.mean.parts[part].time_s]
    names = ["rank", "step"]
    for part in shown:
        names += [part] if part in ALONE else [part, "hidden"]
    rows = []
    for rank, step in shown_ranks(found):
        times_s = [step.time_s]
        for part in shown:
            one = step.parts[part]
            times_s += [one.time_s] if part in ALONE else [one.time_s, one.hidden_s]
        rows.append([rank, *map(format_seconds, [*times_s, step.idle_s])])
    return Table("Parts of a step", [*names, "idle"], rows, NOTE)
