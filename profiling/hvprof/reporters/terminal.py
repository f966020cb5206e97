"""A report of one recording, as tables on a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hvd_ext.units import format_seconds
from hvprof.analysis.advice.case import Advice
from hvprof.analysis.analysis import Analysis
from hvprof.analysis.contention import StepParts
from hvprof.analysis.summary import Row
from hvprof.analysis.wait_split import Split
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
from hvprof.reporters.text import calls_text, operation_text
from hvprof.reporters.verdict import verdict

_MOST_LINES = 6
_ANY_WIDTH = 10_000

_TITLES = {
    "data": "Data: exchanges of the program",
    "control": "Control: Horovod's coordination",
    "transport": "Transport: messages of hvd_ext for the reductions above",
    "tuning": "Tuning: exchanges of hvd_ext's measurements",
}


def render(analysis: Analysis, console: Console) -> None:
    """Print the header, the verdict, tables of the traffic, the waits, and settings to try."""
    for line in map(printable, _header(analysis)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print()
    console.print(printable(verdict(analysis)), style="bold", markup=False, highlight=False)
    for traffic, title in _TITLES.items():
        found = analysis.rows[traffic]
        if found:
            console.print()
            print_table(_table(title, found, analysis.recording.size), console)
    console.print(
        "Times and calls are per rank: total is the mean over the ranks, worst the rank with "
        "the most.\nKB, MB: 1024, 1024 x 1024 bytes. algbw, busbw: 10^9 bytes/s. Non-blocking "
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


def print_table(table: Table, console: Console) -> None:
    """Print a table in its own width, whatever the console's.

    A line that the terminal wraps can be read; a figure that rich cut short cannot.
    """
    table.width = console.measure(table, options=console.options.update_width(_ANY_WIDTH)).maximum
    console.print(table, crop=False)


def _header(analysis: Analysis) -> list[str]:
    recording = analysis.recording
    *first, cost = facts(recording)
    lines = [shlex.join(recording.command) or str(recording.directory), "  ".join(first), cost]
    lines.append(f"registration cache: {registration(recording)}")
    if wire := analysis.between_hosts:
        lines.append(f"between hosts: {wire_text(wire)}")
    step, shown = recording.all_steps, analysis.exposed
    if step and step.index:
        lines.append(_step(step, analysis.step_parts))
        lines += kernel_counts(step)
        if free := analysis.free_speedup:
            lines.append(f"limits: {free_text(free)}")
        if found := analysis.limits:
            lines.append(f"scaling: {limits_text.verdict(found)}")
    elif shown:
        lines.append(
            f"exposed communication: {shown.time_s * 1e3:.1f} ms in {shown.steps} steps, "
            f"{shown.time_s * 1e3 / shown.steps:.2f} ms a step (the training thread was blocked)"
        )
    return lines + warnings(recording)


def _step(step: Step, parts: StepParts | None) -> str:
    known = {name: getattr(parts, key) for name, key in STEP_PARTS.items()}
    named = ", ".join(
        f"{name} {value * 1e3:.2f}" for name, value in known.items() if value is not None
    )
    overlap = step.overlap_percent
    hidden = "" if overlap is None else f"; {overlap:.0f} % of the communication is hidden"
    unknown = "; the kernel does not count CPU contention" if None in known.values() else ""
    time_ms = step.time_s / step.index * 1e3
    return f"a step: {time_ms:.2f} ms ({named}; {step.index} steps){hidden}{unknown}"


def _waiting(split: Split, console: Console) -> None:
    console.print(
        f"Wait against transfer: {100 * split.wait_s / split.time_s:.0f} % of a rank's "
        f"{format_seconds(split.time_s)} in collectives is waiting",
        style="bold",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("collective", no_wrap=True)
    for name in ("transfer ms", "wait ms"):
        table.add_column(name, justify="right")
    for label, transfer_s, wait_s in split.by_operation[:_MOST_LINES]:
        table.add_row(Text(label), _number(transfer_s * 1e3), _number(wait_s * 1e3))
    console.print(table)
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
        for line in (
            f"{number}. {advice.title}{most}",
            f"   {advice.evidence}",
            f"   Setting: {advice.setting}",
            *(f"   $ {line}" for line in advice.command.splitlines()),
        ):
            # A directory's name may have escapes in it, as those of recorded things cannot.
            console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


def _table(title: str, found: list[Row], size: int) -> Table:
    waits = any(row.wait_s is not None for row in found)
    sizes = any(row.size != size for row in found)
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in ("operation", "message size"):
        table.add_column(name, no_wrap=True)
    names = [*(["ranks"] if sizes else []), "calls", "total ms", "worst ms"]
    quantiles = any(row.p50_s is not None for row in found)
    names += [*(["wait ms"] if waits else []), "avg us", "min us"]
    names += [*(["p50 us", "p99 us"] if quantiles else []), "max us", "algbw", "busbw"]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    previous = ""
    for row in found:
        operation = operation_text(row)
        table.add_row(
            Text("" if operation == previous else operation),
            row.message_size,
            *([str(row.size)] if sizes else []),
            *_figures(row, waits=waits, quantiles=quantiles),
        )
        previous = operation
    return table


def _figures(row: Row, *, waits: bool, quantiles: bool) -> list[str]:
    return [
        calls_text(row),
        _number(row.time_s * 1e3),
        _number(row.time_max_s * 1e3),
        *([_number(row.wait_s and row.wait_s * 1e3)] if waits else []),
        _number(row.avg_s * 1e6),
        _number(row.min_s * 1e6),
        *([_number(q and q * 1e6) for q in (row.p50_s, row.p99_s)] if quantiles else []),
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
