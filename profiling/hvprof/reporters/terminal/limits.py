"""Where scaling stops, on a terminal."""

from __future__ import annotations

from rich.console import Console

from hvprof.analysis.limits.limits import Limits
from hvprof.reporters.limits_text import COLUMNS, caption, facts, rows, stop_lines, verdict
from hvprof.reporters.terminal.columns import Column, print_columns

# Columns that a narrow terminal lacks, the highest first.
_DROPPED = {
    "overlap none to full": 6,
    "needed GB/s": 5,
    "batch a rank": 4,
    "waiting": 3,
    "weak": 2,
    "as a tree": 1,
}


def render(limits: Limits, console: Console) -> None:
    """Print the verdict, its basis, the four limits, and the table by number of ranks."""
    console.print(verdict(limits), style="bold", markup=False, highlight=False)
    for line in facts(limits):
        console.print(line, markup=False, highlight=False)
    console.print()
    stops = [Column("scaling stops at", left=True), Column("ring"), Column("tree")]
    print_columns(console, stops, [*stop_lines(limits)])
    console.print()
    columns = [Column(name, _DROPPED.get(name, 0)) for name in COLUMNS]
    print_columns(console, columns, [*rows(limits)])
    console.print(caption(limits), style="dim", highlight=False)
