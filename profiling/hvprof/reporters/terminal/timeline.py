"""The profiled steps as a table on a terminal."""

from __future__ import annotations

from rich.console import Console

from hvprof.analysis.timeline import PARTS, StepTimeline, StepTimelines
from hvprof.reporters.terminal.columns import Column, print_columns
from hvprof.reporters.timeline import ALONE, NOTE, overlaps_text, shown_ranks, title


def print_timeline(found: StepTimelines, console: Console) -> None:
    """Print each part of a step by rank, and the overlaps."""
    shared = [part for part in PARTS if part not in ALONE]
    columns = [Column("rank", left=True), Column("step ms"), *map(Column, ALONE)]
    for drop, part in enumerate(shared, start=1):
        columns += [Column(part), Column("hidden", drop=drop)]
    columns.append(Column("idle"))
    rows = [_row(name, step, shared) for name, step in shown_ranks(found)]
    print_columns(console, columns, rows, title=title(found))
    if overlaps := overlaps_text(found):
        console.print(f"At once: {overlaps}.", highlight=False)
    console.print(NOTE, style="dim", highlight=False)


def _row(name: str, step: StepTimeline, shared: list[str]) -> list[str]:
    times_s: list[float | None] = [
        step.time_s,
        *(step.parts[part].time_s for part in ALONE),
    ]
    for part in shared:
        one = step.parts[part]
        times_s += [one.time_s, one.hidden_s] if one.time_s else [None, None]
    return [name, *("-" if s is None else f"{s * 1e3:.2f}" for s in [*times_s, step.idle_s])]
