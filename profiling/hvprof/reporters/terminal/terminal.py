"""A report of one recording, as tables on a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from hvd_ext.units import counted, format_seconds
from hvprof.analysis.advice.case import Advice
from hvprof.analysis.analysis import Analysis
from hvprof.analysis.contention import StepParts
from hvprof.analysis.sites import SiteCost
from hvprof.analysis.summary import Row
from hvprof.analysis.waiting.wait_split import Split
from hvprof.model import Step
from hvprof.printable import printable
from hvprof.reporters import limits_text
from hvprof.reporters.header import (
    STEP_PARTS,
    facts,
    free_text,
    kernel_counts,
    registration,
    warnings,
    wire_text,
)
from hvprof.reporters.terminal.columns import Column, print_columns
from hvprof.reporters.terminal.timeline import print_timeline
from hvprof.reporters.text import calls_text, control_text, operation_text
from hvprof.reporters.verdict import verdict

_MOST_LINES, _MOST_SITES = 6, 10

_TITLES = {
    "data": "Data: exchanges of the program",
    "control": "Control: {control}",
    "transport": "Transport: messages of hvd_ext for the reductions above",
    "tuning": "Tuning: exchanges of hvd_ext's measurements",
}


def render(analysis: Analysis, console: Console) -> None:
    """Print the header, the verdict, tables of the traffic, the waits, and settings to try."""
    for line in map(printable, _header(analysis)):
        console.print(line, markup=False, highlight=False)
    console.print()
    console.print(printable(verdict(analysis)), style="bold", markup=False, highlight=False)
    for traffic, title in _TITLES.items():
        found = analysis.rows[traffic]
        if found:
            console.print()
            title = title.format(control=control_text(analysis.rows["control"]))
            _print_traffic(title, found, analysis.recording.size, console)
    if analysis.timeline:
        console.print()
        print_timeline(analysis.timeline, console)
    if analysis.sites:
        console.print()
        _print_sites(analysis.sites, console)
    console.print(
        "Times and calls are per rank: total is the mean over the ranks, worst the rank with "
        "the most. KB, MB: 1024, 1024 x 1024 bytes. algbw, busbw: 10^9 bytes/s. Non-blocking "
        "(i...): time to start the call.",
        style="dim",
        highlight=False,
    )
    if analysis.wait_split and analysis.wait_split.time_s:
        console.print()
        _waiting(analysis.wait_split, console)
    if analysis.advice:
        console.print()
        _advice(analysis.advice, console)


def _header(analysis: Analysis) -> list[str]:
    recording = analysis.recording
    *first, cost = facts(recording)
    lines = [shlex.join(recording.command) or str(recording.directory), "  ".join(first), cost]
    lines.append(f"registration cache: {registration(recording)}")
    if wire := analysis.between_hosts:
        lines.append(f"between hosts: {wire_text(wire)}")
    step, parts, shown = recording.all_steps, analysis.step_parts, analysis.exposed
    if step and parts:
        lines.append(_step(step, parts))
        lines += kernel_counts(step)
        if free := analysis.free_speedup:
            lines.append(f"limits: {free_text(free)}")
        if found := analysis.limits:
            lines.append(f"scaling: {limits_text.verdict(found)}")
    elif shown:
        lines.append(
            f"exposed communication: {shown.time_s * 1e3:.1f} ms in "
            f"{counted(shown.steps, 'step')}, {shown.time_s * 1e3 / shown.steps:.2f} ms a step "
            "(the training thread was blocked)"
        )
    return lines + warnings(recording)


def _step(step: Step, parts: StepParts) -> str:
    known = {name: getattr(parts, key) for name, key in STEP_PARTS.items()}
    named = ", ".join(
        f"{name} {value * 1e3:.2f}" for name, value in known.items() if value is not None
    )
    overlap = step.overlap_percent
    hidden = "" if overlap is None else f"; {overlap:.0f} % of the communication is hidden"
    unknown = "; the kernel does not count CPU contention" if None in known.values() else ""
    time_ms = step.time_s / step.index * 1e3
    return f"a step: {time_ms:.2f} ms ({named}; {counted(step.index, 'step')}){hidden}{unknown}"


def _waiting(split: Split, console: Console) -> None:
    console.print(
        f"Wait against transfer: {100 * split.wait_s / split.time_s:.0f} % of a rank's "
        f"{format_seconds(split.time_s)} in collectives is waiting",
        style="bold",
        highlight=False,
    )
    print_columns(
        console,
        [Column("collective", left=True), Column("transfer ms"), Column("wait ms")],
        [
            (label, _number(transfer_s * 1e3), _number(wait_s * 1e3))
            for label, transfer_s, wait_s in split.by_operation[:_MOST_LINES]
        ],
    )
    late = split.waited_for[:3]
    if late:
        named = ", ".join(f"rank {rank} ({format_seconds(time_s)})" for rank, time_s in late)
        console.print(f"Waited for most, mean over the ranks: {named}.", highlight=False)
    console.print(split.note, style="dim", highlight=False)


def _advice(advices: Sequence[Advice], console: Console) -> None:
    console.print("Settings to try next", style="bold")
    for number, advice in enumerate(advices, start=1):
        most = "" if advice.most_s is None else f": at most {format_seconds(advice.most_s)} a rank"
        if advice.most_percent is not None:
            most += f", {advice.most_percent:.1f} % of the {advice.share_of}"
        # A directory's name may contain escapes; recorded names cannot.
        title = printable(f"{number}. {advice.title}{most}")
        console.print(title, markup=False, highlight=False)
        for line in (advice.evidence, f"Setting: {advice.setting}"):
            text = Padding(Text(printable(line)), (0, 0, 0, 3))
            console.print(text, highlight=False)
        for line in advice.command.splitlines():
            # One line for each command, so that it can be copied.
            console.print(printable(f"   $ {line}"), markup=False, highlight=False, soft_wrap=True)


def _print_traffic(title: str, found: list[Row], size: int, console: Console) -> None:
    columns = [
        Column("operation", left=True),
        Column("message size", left=True),
        Column("ranks", drop=1 if all(row.size == size for row in found) else 0),
        Column("calls"),
        Column("total ms"),
        Column("worst ms"),
        Column("wait ms"),
        Column("avg us"),
        Column("min us", drop=5),
        Column("p50 us", drop=4),
        Column("p99 us", drop=3),
        Column("max us", drop=2),
        Column("algbw", drop=6),
        Column("busbw"),
    ]
    if all(row.wait_s is None for row in found):
        columns[6] = Column("wait ms", drop=7)
    rows, previous = [], ""
    for row in found:
        operation = operation_text(row)
        rows.append(
            (
                "" if operation == previous else operation,
                row.message_size,
                "-" if row.size == size and columns[2].drop else str(row.size),
                *_figures(row),
            )
        )
        previous = operation
    print_columns(console, columns, rows, title=title)


def _print_sites(sites: Sequence[SiteCost], console: Console) -> None:
    columns = [
        Column("operation", left=True),
        Column("place", left=True),
        Column("ranks", drop=2),
        Column("calls"),
        Column("total ms"),
        Column("worst ms", drop=1),
        Column("wait ms"),
        Column("% of run"),
        Column("max us", drop=3),
    ]
    rows = [
        (
            one.operation,
            one.place,
            str(one.ranks),
            str(one.calls),
            _number(one.time_s * 1e3),
            _number(one.worst_s * 1e3),
            _number(one.wait_s * 1e3),
            _number(one.percent),
            _number(one.max_s * 1e6),
        )
        for one in sites[:_MOST_SITES]
    ]
    more = f", the longest {_MOST_SITES} of {len(sites)}" if len(sites) > _MOST_SITES else ""
    print_columns(console, columns, rows, title=f"Call sites{more}")


def _figures(row: Row) -> list[str]:
    return [
        calls_text(row),
        _number(row.time_s * 1e3),
        _number(row.time_max_s * 1e3),
        _number(row.wait_s and row.wait_s * 1e3),
        _number(row.avg_s * 1e6),
        _number(row.min_s * 1e6),
        *(_number(q and q * 1e6) for q in (row.p50_s, row.p99_s)),
        _number(row.max_s * 1e6),
        _number(row.algbw_gb_s),
        _number(row.busbw_gb_s),
    ]


def _number(value: float | None) -> str:
    """Three digits, and never an exponent."""
    if value is None:
        return "-"
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2 if value >= 0.9995 else 3
    return f"{value:.{digits}f}"
