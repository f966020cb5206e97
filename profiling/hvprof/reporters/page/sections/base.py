"""Figures, tables and colors that all sections share, and the grouping of ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hvprof.analysis.analysis import Analysis
from hvprof.analysis.audit import Outcome
from hvprof.layers.table import LayerTable

# Colors of the page (templates/page.html.j2).
DATA, WAIT, CONTROL, COMPUTE, INPUT, GOOD, BAD = 1, 2, 3, 4, 5, 6, 7
_MOST_COLUMNS = 64


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart, and its explanation."""

    name: str
    title: str
    caption: str
    svg: str


def grouped(
    *tables: Sequence[tuple[int, float]], unusual: bool = False
) -> tuple[list[str], list[list[float]]]:
    """At most 64 columns: neighboring ranks share one.

    It shows their longest time, or the time that is farthest from the mean of all: a late rank has
    the shortest times, and must be visible.
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
    """Title of an axis of `count` ranks that `grouped` named."""
    return "rank" if len(names) == count else f"ranks, {math.ceil(count / len(names))} a column"


@dataclass(frozen=True, slots=True)
class Table:
    """A table, and the explanation of its columns."""

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
    """Input of a page.

    Attributes:
        analysis: analysis of the recording.
        layers: layers of its model, if they were measured.
        peak_gb_s: bandwidth of the link or the memory, in 10^9 bytes/s; where it is None,
            shares are of the best bandwidth in the recording.
        audit: audit of its ranks, see `compared`; the reason why there is none; or None.
    """

    analysis: Analysis
    layers: LayerTable | None = None
    peak_gb_s: float | None = None
    audit: Mapping[tuple[str, int], Outcome] | str | None = None
