"""A comparison as a table on a terminal, and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from hvd_ext.units import MB, counted, format_seconds
from hvprof.analysis.comparison.bootstrap import BETWEEN_RUNS, FASTER, SLOWER
from hvprof.analysis.comparison.compared import ComparedRow, Side
from hvprof.analysis.comparison.comparison import ALLREDUCE, Comparison, interval_text, times_text
from hvprof.analysis.contention import StepParts
from hvprof.reporters.page import svg
from hvprof.reporters.page.page import render_page
from hvprof.reporters.page.sections.base import BAD, CONTROL, DATA, GOOD, Figure
from hvprof.reporters.page.svg import Series
from hvprof.reporters.terminal.columns import Column, print_columns

# Longer names of sides stand above the table.
_LABEL = 14


def render(comparison: Comparison, console: Console) -> None:
    """Print the verdict, the table, and the reasons for caution."""
    console.print(comparison.verdict, style="bold", markup=False, highlight=False)
    console.print()
    short = all(len(label) <= _LABEL for label in comparison.labels)
    if not short:
        for letter, label in zip("AB", comparison.labels, strict=True):
            console.print(f"{letter}: {label}", markup=False, highlight=False, soft_wrap=True)
    labels = comparison.labels if short else ("A", "B")
    columns = [
        Column("a rank's time", left=True),
        Column(labels[0]),
        Column("MB", drop=2, style="dim"),
        Column(labels[1]),
        Column("MB", drop=2, style="dim"),
        Column("less time", drop=1),
        Column("speedup"),
        Column("interval"),
        Column("verdict", left=True),
    ]
    shown = comparison.shown
    print_columns(console, columns, [_colored(comparison, row) for row in shown])
    console.print()
    for line in notes(comparison):
        console.print(line, markup=False, highlight=False, style="dim")


def notes(comparison: Comparison) -> list[str]:
    """Method of the intervals, and caveats."""
    lines = [*_on_the_lead(comparison), _on_intervals(comparison)]
    if comparison.step_parts:
        lines.append(_on_steps(comparison.labels, comparison.step_parts))
    if cut := comparison.cut_differently:
        lines.append(
            f"Allreduce of {', '.join(cut)} has no counterpart: the sides cut the same gradients "
            "into different messages."
        )
    if not comparison.same_bytes:
        amounts = " and ".join(
            f"{side.message_bytes / MB:.1f} MB"
            for side in (comparison.total.first, comparison.total.second)
        )
        lines.append(
            f"The sides moved different amounts of data: {amounts} a rank. They may have had "
            "different numbers of steps; the speedup of operations is of the time for a byte."
        )
    if not comparison.same_ranks:
        lines.append("The sides had different numbers of ranks: that alone changes the time.")
    return lines


def _on_the_lead(comparison: Comparison) -> Iterator[str]:
    lead = comparison.lead
    if lead and lead.name == "step":
        counts = f"{lead.first.calls:.0f} and {counted(round(lead.second.calls), 'step')}"
        yield f"A step: the mean of {counts} of a run, without its warm-up."
    elif lead and min(comparison.runs) == 1:
        yield (
            "A run without steps is a single number: mark steps with hvprof.step(), or record 2 "
            "or more runs a side."
        )


def _on_steps(labels: tuple[str, str], parts: tuple[StepParts, StepParts]) -> str:
    """The cost of hidden communication in a step on each side."""
    sides = (
        f"{label} {'not known' if side.slowed_s is None else f'{side.slowed_s * 1e3:.1f} ms'}"
        for label, side in zip(labels, parts, strict=True)
    )
    return f"Slowed by communication, a step, warm-up included: {', '.join(sides)}."


def _on_intervals(comparison: Comparison) -> str:
    percent = f"{100 * comparison.confidence:g} %"
    first, second = comparison.runs
    usual = f"{100 * BETWEEN_RUNS:g} %"
    if comparison.headline.low_percent is None and comparison.total.low_percent is None:
        return "No intervals: one run is one sample. Record 2 or more a side, in a folder."
    if min(comparison.runs) == 1:
        return (
            f"Intervals hold with {percent} if runs differ by some {usual}: they come from blocks "
            "of one run, and runs may differ by more. Record 2 or more a side, in a folder."
        )
    if comparison.pairs:
        return (
            f"Intervals hold with {percent}: the runs were recorded alternately, and are compared "
            f"as {counted(comparison.pairs, 'pair')}."
        )
    return (
        f"Intervals hold with {percent}: bootstrap over blocks of {first} and "
        f"{counted(second, 'run')}, and the runs' spread, at first taken as {usual}."
    )


def cells(comparison: Comparison, row: ComparedRow) -> tuple[str, ...]:
    """A row of the table, as text."""
    percent, speedup = row.improvement_percent, row.speedup
    return (
        _name(comparison, row),
        *_figures(row.first),
        *_figures(row.second),
        # Adding 0 turns -0.0 into 0.
        "-" if percent is None else f"{round(percent, 1) + 0:.1f} %",
        "-" if speedup is None else f"{times_text(speedup)} x",
        interval_text(row),
        row.verdict,
    )


def _name(comparison: Comparison, row: ComparedRow) -> str:
    if row is comparison.exposed:
        return "  exposed in it"
    return f"  {row.name}" if row in comparison.rows else row.name


def _colored(comparison: Comparison, row: ComparedRow) -> Sequence[str | Text]:
    colors = {FASTER: "bold green", SLOWER: "bold red"}
    *plain, verdict = cells(comparison, row)
    return (*plain, Text(verdict, style=colors.get(verdict, "")))


def _figures(side: Side) -> tuple[str, str]:
    if not side.calls:
        return "-", "-"
    moved = f"{side.message_bytes / MB:.1f}" if side.message_bytes else "-"
    return format_seconds(side.time_s), moved


def comparison_page(comparison: Comparison) -> str:
    first, second = comparison.runs
    return render_page(
        "compare.html.j2",
        comparison.as_json(),
        title=f"hvprof: {comparison.labels[0]} against {comparison.labels[1]}",
        labels=comparison.labels,
        facts=[f"{first} and {counted(second, 'run')}", f"{comparison.headline.name} first"],
        notes=notes(comparison),
        verdict=comparison.verdict,
        kind=_kind(comparison.headline),
        rows=[{"kind": _kind(row), "cells": cells(comparison, row)} for row in comparison.shown],
        charts=[*_pictures(comparison)],
    )


def _pictures(found: Comparison) -> Iterator[Figure]:
    """Improvement of each row with its interval, and the times side by side."""
    colors = {FASTER: GOOD, SLOWER: BAD}
    shown = [
        (_name(found, row).strip(), row.improvement_percent, row.low_percent, row.high_percent,
         colors.get(row.verdict, CONTROL))
        for row in found.shown
        if row.improvement_percent is not None
    ]  # fmt: skip
    if shown:
        yield Figure(
            "improvement",
            "Less time",
            f"The dots show how much less time {found.labels[1]} takes than {found.labels[0]}, "
            f"the bars are the {100 * found.confidence:g} % intervals. Gray: no evidence of a "
            "difference.",
            svg.intervals("improvement", shown, lambda value: f"{value:+.3g} %"),
        )
    # Both on one scale, line by line.
    names = [name for row in found.rows for name in (row.name, "")]
    sides = (
        [time_s for row in found.rows for time_s in (row.first.time_s, None)],
        [time_s for row in found.rows for time_s in (None, row.second.time_s)],
    )
    if names:
        yield Figure(
            "times",
            f"Time in {ALLREDUCE} by message size",
            "This is a rank's time, as a mean over the ranks and over the runs "
            f"({found.runs[0]} of {found.labels[0]}, {found.runs[1]} of {found.labels[1]}).",
            svg.bars(
                "times",
                names,
                [
                    Series(svg.shorten(found.labels[0], 24), sides[0], CONTROL),
                    Series(svg.shorten(found.labels[1], 24), sides[1], DATA),
                ],
                format_seconds,
            ),
        )


def _kind(row: ComparedRow) -> str:
    return row.verdict if row.verdict in (FASTER, SLOWER) else ""
