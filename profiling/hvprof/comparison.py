"""Two recordings side by side: the allreduce time of a rank by message size.

The table is that of Anthony et al. for EDSR on Horovod: message size, time with the
default, time optimised, improvement.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hvd_ext.units import MB
from hvprof.recording import Recording
from hvprof.rows import SIZE_ROWS, rows

# More than this between the bytes of the sides, and their times are not of one job.
_BYTES_TOLERANCE = 0.01


@dataclass(frozen=True, slots=True)
class Side:
    """The allreduce calls of a rank, as a mean over the ranks of one recording."""

    calls: float
    message_bytes: float
    time_s: float


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One range of message sizes, or all of them ("total").

    `improvement_percent` is how much less time the second side takes for a byte: where
    both moved the same, how much less time it takes; where they cut the same gradients
    into other messages, still a fair figure. None where a side has no such message.
    """

    message_size: str
    first: Side
    second: Side
    improvement_percent: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The allreduce of two recordings, by message size and in total.

    `same_bytes` is False if the bytes that the sides moved differ by more than 1 %.
    """

    labels: tuple[str, str]
    rows: tuple[ComparedRow, ...]
    total: ComparedRow
    same_bytes: bool

    def as_json(self) -> dict:
        """The comparison in JSON's types; the keys are the attributes' names."""
        return dataclasses.asdict(self)


def compare(
    first: Recording, second: Recording, labels: tuple[str, str] | None = None
) -> Comparison:
    """Hold the allreduce of two recordings against each other.

    Args:
        first: the default.
        second: what is to be better than it.
        labels: names of the sides; by default those of the directories.
    """
    sides = (_sides(first), _sides(second))
    nothing = Side(0, 0, 0)
    compared = [
        _compared(label, sides[0].get(label, nothing), sides[1].get(label, nothing))
        for label, _ in SIZE_ROWS
        if label in sides[0] or label in sides[1]
    ]
    total = _compared("total", _sum(sides[0].values()), _sum(sides[1].values()))
    moved = (total.first.message_bytes, total.second.message_bytes)
    return Comparison(
        labels=labels or _labels(first, second),
        rows=tuple(compared),
        total=total,
        same_bytes=abs(moved[0] - moved[1]) <= _BYTES_TOLERANCE * max(moved),
    )


def render(comparison: Comparison, console: Console) -> None:
    """Print the table, and what speaks against reading it."""
    table = Table(title="Allreduce time of a rank, mean over the ranks", title_justify="left")
    table.add_column("message size")
    for label in comparison.labels:
        table.add_column(Text(f"{label} (ms)"), justify="right")
        table.add_column("MB", justify="right", style="dim")
    table.add_column("improvement", justify="right")
    for row in comparison.rows:
        table.add_row(*_cells(row))
    table.add_section()
    table.add_row(*_cells(comparison.total))
    console.print(table)
    if not comparison.same_bytes:
        amounts = " and ".join(
            f"{side.message_bytes / MB:.1f} MB"
            for side in (comparison.total.first, comparison.total.second)
        )
        console.print(
            f"The sides did not move the same: {amounts} a rank. They may have had "
            "different numbers of steps; the improvement is of the time for a byte.",
            markup=False,
        )


def _cells(row: ComparedRow) -> tuple[str, ...]:
    percent = row.improvement_percent
    return (
        row.message_size,
        *_figures(row.first),
        *_figures(row.second),
        "-" if percent is None else f"{percent:.1f} %",
    )


def _figures(side: Side) -> tuple[str, str]:
    if not side.calls:
        return "-", "-"
    return f"{side.time_s * 1e3:.1f}", f"{side.message_bytes / MB:.1f}"


def _sides(recording: Recording) -> dict[str, Side]:
    count = len(recording.ranks)
    sides: dict[str, Side] = {}
    for row in rows(recording, "data"):
        if row.operation == "allreduce":
            side = Side(row.calls / count, row.message_bytes / count, row.time_s)
            present = sides.get(row.message_size)
            sides[row.message_size] = _sum([present, side]) if present else side
    return sides


def _sum(sides: Collection[Side]) -> Side:
    return Side(
        sum(side.calls for side in sides),
        sum(side.message_bytes for side in sides),
        sum(side.time_s for side in sides),
    )


def _compared(label: str, first: Side, second: Side) -> ComparedRow:
    before, after = _seconds_a_byte(first), _seconds_a_byte(second)
    percent = 100 * (1 - after / before) if before and after else None
    return ComparedRow(label, first, second, percent)


def _seconds_a_byte(side: Side) -> float | None:
    return side.time_s / side.message_bytes if side.message_bytes else None


def _labels(first: Recording, second: Recording) -> tuple[str, str]:
    names = (first.directory.resolve().name, second.directory.resolve().name)
    return names if names[0] != names[1] else (str(first.directory), str(second.directory))
