"""A comparison as a table on a terminal, and as a page."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hvd_ext.units import MB, format_seconds
from hvprof.analysis.bootstrap import BETWEEN_RUNS, FASTER, NO_EVIDENCE, SLOWER
from hvprof.analysis.comparison import ComparedRow, Comparison, Side, interval_text
from hvprof.analysis.contention import StepParts
from hvprof.reporters import svg
from hvprof.reporters.page import render_page
from hvprof.reporters.sections.base import BAD, CONTROL, DATA, GOOD, Figure
from hvprof.reporters.svg import Series
from hvprof.reporters.terminal import print_table


def render(comparison: Comparison, console: Console) -> None:
    """Print the table, and what speaks against reading it."""
    table = Table(title="Allreduce time of a rank, mean over the ranks", title_justify="left")
    table.add_column("message size", no_wrap=True)
    for label in comparison.labels:
        table.add_column(Text(f"{label} (ms)", overflow="fold"), justify="right")
        table.add_column("MB", justify="right", style="dim")
    for name in ("improvement", "interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in comparison.rows:
        table.add_row(*_colored(row))
    table.add_section()
    table.add_row(*_colored(comparison.total))
    print_table(table, console)
    for line in notes(comparison):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def notes(comparison: Comparison) -> list[str]:
    """Method of the intervals, and caveats."""
    lines = [_on_intervals(comparison)]
    if comparison.step_parts:
        lines.append(_on_steps(comparison.labels, comparison.step_parts))
    if not comparison.same_cut:
        lines.append(
            "The sides cut the same gradients into different messages: such rows have no "
            "counterpart; compare the total."
        )
    if not comparison.same_bytes:
        amounts = " and ".join(
            f"{side.message_bytes / MB:.1f} MB"
            for side in (comparison.total.first, comparison.total.second)
        )
        lines.append(
            f"The sides moved different amounts of data: {amounts} a rank. They may have had "
            "different numbers of steps; the improvement is of the time for a byte."
        )
    if not comparison.same_ranks:
        lines.append("The sides had different numbers of ranks: that alone changes the time.")
    return lines


def _on_steps(labels: tuple[str, str], parts: tuple[StepParts, StepParts]) -> str:
    """Time of a step on each side, and the cost of communication in it."""
    sides = []
    for label, side in zip(labels, parts, strict=True):
        slowed = (
            "slowed by communication not known"
            if side.slowed_s is None
            else f"slowed by communication {side.slowed_s * 1e3:.1f}"
        )
        sides.append(
            f"{label} {side.time_s * 1e3:.1f} ms ({slowed}, exposed {side.exposed_s * 1e3:.1f})"
        )
    return f"A step: {'; '.join(sides)}."


def _on_intervals(comparison: Comparison) -> str:
    percent = f"{100 * comparison.confidence:g} %"
    first, second = comparison.runs
    if comparison.resampled == "runs":
        return (
            f"Intervals hold with {percent}, the rows jointly; bootstrap over {first} and "
            f"{second} runs."
        )
    if comparison.resampled == "blocks":
        return (
            f"Intervals hold with {percent}, the rows jointly, if runs differ by some "
            f"{100 * BETWEEN_RUNS:g} %: bootstrap over blocks of one run, which do not show "
            "it. Record 3 or more runs a side (a folder of recordings)."
        )
    return "No intervals: one run is one sample. Record 3 or more a side (a folder of recordings)."


def cells(row: ComparedRow) -> tuple[str, ...]:
    """A row of the table, as text."""
    percent = row.improvement_percent
    return (
        row.message_size,
        *_figures(row.first),
        *_figures(row.second),
        "-" if percent is None else f"{percent:.1f} %",
        interval_text(row),
        row.verdict,
    )


def _colored(row: ComparedRow) -> tuple[str | Text, ...]:
    colors = {FASTER: "bold green", SLOWER: "bold red"}
    *plain, verdict = cells(row)
    return (*plain, Text(verdict, style=colors.get(verdict, "")))


def _figures(side: Side) -> tuple[str, str]:
    if not side.calls:
        return "-", "-"
    return f"{side.time_s * 1e3:.1f}", f"{side.message_bytes / MB:.1f}"


def comparison_page(comparison: Comparison) -> str:
    shown = [*comparison.rows, comparison.total]
    return render_page(
        "compare.html.j2",
        comparison.as_json(),
        title=f"hvprof: {comparison.labels[0]} against {comparison.labels[1]}",
        labels=comparison.labels,
        runs=comparison.runs,
        notes=notes(comparison),
        verdict=comparison_verdict(comparison),
        total={"kind": _kind(comparison.total)},
        rows=[{"kind": _kind(row), "cells": cells(row)} for row in shown],
        charts=[*_pictures(comparison)],
    )


def comparison_verdict(comparison: Comparison) -> str:
    """A comparison in a sentence."""
    total = comparison.total
    first, second = comparison.labels
    if total.improvement_percent is None:
        return "No allreduce on both sides to compare."
    if total.verdict == NO_EVIDENCE:
        interval = interval_text(total)
        known = f" (interval {interval})" if interval != "-" else ""
        return (
            f"No evidence that {second} differs from {first}: the best estimate is "
            f"{total.improvement_percent:+.1f} %{known}."
        )
    return (
        f"{second} is {total.verdict}: {abs(total.improvement_percent):.1f} % "
        f"{'less' if total.improvement_percent > 0 else 'more'} allreduce time for a byte than "
        f"{first} (interval {interval_text(total)})."
    )


def _pictures(found: Comparison) -> Iterator[Figure]:
    """Improvement of each row with its interval, and the times side by side."""
    colors = {FASTER: GOOD, SLOWER: BAD}
    shown = [
        (row.message_size, row.improvement_percent, row.low_percent, row.high_percent,
         colors.get(row.verdict, CONTROL))
        for row in (*found.rows, found.total)
        if row.improvement_percent is not None
    ]  # fmt: skip
    if shown:
        yield Figure(
            "improvement",
            "Improvement of the allreduce time",
            f"The dots show how much less time {found.labels[1]} takes for a byte than "
            f"{found.labels[0]}, the bars are the {100 * found.confidence:g} % intervals. Grey: no "
            "evidence of a difference.",
            svg.intervals("improvement", shown, lambda value: f"{value:+.3g} %"),
        )
    # Both on one scale, line by line.
    names = [name for row in found.rows for name in (row.message_size, "")]
    sides = (
        [time_s for row in found.rows for time_s in (row.first.time_s, None)],
        [time_s for row in found.rows for time_s in (None, row.second.time_s)],
    )
    if names:
        yield Figure(
            "times",
            "Allreduce time by message size",
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
    return row.verdict if row.verdict in ("faster", "slower") else ""
