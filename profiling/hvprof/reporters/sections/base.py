"""What all sections share: figures, tables, colours, and how many ranks fit in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_ext.units import format_seconds, time_unit
from hvprof.analysis.analysis import Analysis
from hvprof.analysis.summary import Row
from hvprof.layers.table import LayerTable

# Colours of the page (templates/page.html.j2).
DATA, WAIT, CONTROL, COMPUTE, INPUT, GOOD, BAD = 1, 2, 3, 4, 5, 6, 7
_MOST_COLUMNS = 64


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart, and what it shows."""

    name: str
    title: str
    caption: str
    svg: str


def grouped(
    *tables: Sequence[tuple[int, float]], unusual: bool = False
) -> tuple[list[str], list[list[float]]]:
    """At most 64 columns: neighbouring ranks share one.

    It shows their longest time, or the one that is farthest from the mean of all: a rank
    that is late has the shortest times, and must be seen.
    """
    count = len(tables[0])
    each = math.ceil(count / _MOST_COLUMNS)
    starts = range(0, count, each)
    names = []
    for start in starts:
        group = tables[0][start : start + each]
        first, last = group[0][0], group[-1][0]
        names.append(str(first) if first == last else f"{first}-{last}")
    columns = []
    for table in tables:
        values = [value for _, value in table]
        mean = sum(values) / count if unusual else 0.0
        groups = [values[start : start + each] for start in starts]
        columns.append([max(group, key=lambda value: abs(value - mean)) for group in groups])
    return names, columns


def ranks_title(count: int, names: Sequence[str]) -> str:
    """What stands below columns of `count` ranks that `grouped` named."""
    return "rank" if len(names) == count else f"ranks, {math.ceil(count / len(names))} a column"


@dataclass(frozen=True, slots=True)
class Table:
    """A table, and what its columns hold."""

    title: str
    names: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with figures and tables; it is left out where there are none."""

    title: str
    figures: Sequence[Figure]
    tables: Sequence[Table] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """What a page is about.

    Attributes:
        analysis: of the recording.
        layers: of its model, where they were measured.
        peak_gb_s: what the link or the memory can do, in 10^9 bytes/s; where it is None,
            shares are of the best bandwidth in the recording.
    """

    analysis: Analysis
    layers: LayerTable | None = None
    peak_gb_s: float | None = None


def operation_text(row: Row) -> str:
    """The operation, and how hvd_ext carried it out where it says so."""
    return row.operation if row.algorithm == "native" else f"{row.operation} ({row.algorithm})"


def calls_text(row: Row) -> str:
    """Calls of a rank, as a range where the ranks differ."""
    even = row.calls_min == row.calls_max
    return str(row.calls_max) if even else f"{row.calls_min}-{row.calls_max}"


def bandwidth_text(gb_s: float | None) -> str:
    """A bandwidth with the decimal unit that keeps it short, or "-" where it is not known."""
    if gb_s is None:
        return "-"
    for factor, unit in ((1.0, "GB/s"), (1e-3, "MB/s")):
        if gb_s >= factor:
            return f"{gb_s / factor:.3g} {unit}"
    return f"{gb_s / 1e-6:.3g} kB/s"


def scaled_seconds(values: Sequence[float]) -> tuple[list[str], str]:
    """Times as numbers of one unit, three digits of the longest, and that unit."""
    longest_s = max(values, default=0.0)
    unit_s, unit = time_unit(longest_s)
    digits = 2 if longest_s < 10 * unit_s else 1 if longest_s < 100 * unit_s else 0
    return [f"{value / unit_s:.{digits}f}" for value in values], unit


def seconds_text(value: float | None) -> str:
    """A time, or "-" where it is not known."""
    return "-" if value is None else format_seconds(value)
