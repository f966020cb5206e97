"""What one recording shows: as tables on a terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import shlex
import time
from itertools import islice

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hvprof.recording import RankRecording, Recording
from hvprof.rows import Row, exposed, rows

JSON_VERSION = 1

_NAMED_RANKS = 16

_TITLES = {
    "data": "Data: what the program exchanges",
    "control": "Control: Horovod's coordination, apart from the data",
    "transport": "Transport: what hvd_ext sends to carry out the reductions above",
}


def as_json(recording: Recording) -> dict:
    """All of a recording in JSON's types (docs/hvprof.md names the keys)."""
    shown = exposed(recording)
    return {
        "json_version": JSON_VERSION,
        "directory": str(recording.directory),
        "command": list(recording.command),
        "host": recording.host,
        "start_unix_s": recording.start_unix_s,
        "duration_s": recording.duration_s,
        "exit_code": recording.exit_code,
        "versions": recording.versions,
        "size": recording.size,
        "exposed": dataclasses.asdict(shown) if shown else None,
        **{
            traffic: [dataclasses.asdict(row) for row in rows(recording, traffic)]
            for traffic in _TITLES
        },
        "ranks": [dataclasses.asdict(rank) for rank in recording.ranks],
    }


def render(recording: Recording, console: Console) -> None:
    """Print the header, and a table for each kind of traffic that there was."""
    for line in _header(recording):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for traffic, title in _TITLES.items():
        found = rows(recording, traffic)
        if found:
            console.print()
            console.print(_table(title, found, recording.size))
    console.print(
        "Times and calls are a rank's: total is the mean over the ranks, worst the rank with "
        "the most.\nKB, MB: 1024, 1024 x 1024 bytes. algbw, busbw: 10^9 bytes/s. Of an i... "
        "operation: the call that starts it.",
        style="dim",
        highlight=False,
    )


def _header(recording: Recording) -> list[str]:
    ranks = recording.ranks
    first = ranks[0]
    hosts = len({rank.host for rank in ranks})
    when = recording.start_unix_s or min(rank.start_unix_s for rank in ranks)
    facts = [
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when)),
        f"{len(ranks)} of {recording.size} ranks on {hosts} host{'s' * (hosts > 1)}",
    ]
    if recording.duration_s is not None:
        facts.append(f"{recording.duration_s:.1f} s")
    if recording.exit_code is not None:
        facts.append(f"exit code {recording.exit_code}")
    facts.append(first.mpi_library.split(",")[0])
    lines = [shlex.join(recording.command) or str(recording.directory), "  ".join(facts)]
    lines.append(_cost(ranks))
    shown = exposed(recording)
    if shown:
        lines.append(
            f"exposed communication: {shown.time_s * 1e3:.1f} ms in {shown.steps} steps, "
            f"{shown.time_s * 1e3 / shown.steps:.2f} ms a step (the training thread stood still)"
        )
    return lines + _warnings(recording)


def _cost(ranks: tuple[RankRecording, ...]) -> str:
    cost_s = max(rank.recorder_cost_s for rank in ranks)
    calls = max(sum(cell.calls for cell in rank.cells) for rank in ranks)
    return (
        f"recorder: {cost_s * 1e6:.2f} us a call, measured at start; "
        f"{calls} calls, {cost_s * calls * 1e3:.3g} ms a rank"
    )


def _warnings(recording: Recording) -> list[str]:
    warnings = []
    present = {rank.rank for rank in recording.ranks}
    # No more than are named: a damaged file may speak of a billion ranks.
    missing = list(
        islice((rank for rank in range(recording.size) if rank not in present), _NAMED_RANKS + 1)
    )
    unfinished = [rank.rank for rank in recording.ranks if rank.state == "unfinished"]
    dropped = sum(rank.dropped_calls for rank in recording.ranks)
    if missing:
        warnings.append(f"warning: no recording of {_ranks(missing)}")
    if unfinished:
        warnings.append(
            f"warning: {_ranks(unfinished)} did not finish; what was done until then is counted"
        )
    if dropped:
        warnings.append(f"warning: {dropped} calls had no room in the histogram and are missing")
    return warnings


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:_NAMED_RANKS])) + (", ..." * (len(ranks) > _NAMED_RANKS))
    return f"rank{'s' * (len(ranks) > 1)} {shown}"


def _table(title: str, found: list[Row], size: int) -> Table:
    waits = any(row.wait_s is not None for row in found)
    sizes = any(row.size != size for row in found)
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in ("operation", "message size"):
        table.add_column(name, no_wrap=True)
    names = [*(["ranks"] if sizes else []), "calls", "total ms", "worst ms"]
    names += [*(["wait ms"] if waits else []), "avg us", "min us", "max us", "algbw", "busbw"]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    previous = ""
    for row in found:
        native = row.algorithm == "native"
        operation = row.operation if native else f"{row.operation} ({row.algorithm})"
        table.add_row(
            Text("" if operation == previous else operation),
            row.message_size,
            *([str(row.size)] if sizes else []),
            *_figures(row, waits=waits),
        )
        previous = operation
    return table


def _figures(row: Row, *, waits: bool) -> list[str]:
    even = row.calls_min == row.calls_max
    return [
        str(row.calls_max) if even else f"{row.calls_min}-{row.calls_max}",
        _number(row.time_s * 1e3),
        _number(row.time_max_s * 1e3),
        *([_number(row.wait_s and row.wait_s * 1e3)] if waits else []),
        _number(row.avg_s * 1e6),
        _number(row.min_s * 1e6),
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
