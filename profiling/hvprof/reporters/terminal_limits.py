"""Where scaling stops, on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from hvprof.analysis.limits.limits import Limits
from hvprof.reporters.limits_text import COLUMNS, caption, facts, rows, stop_lines, verdict
from hvprof.reporters.terminal import print_table


def render(limits: Limits, console: Console) -> None:
    """Print the verdict, what it rests on, the four limits, and the table by number of ranks."""
    console.print(verdict(limits), style="bold", markup=False, highlight=False, soft_wrap=True)
    for line in facts(limits):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print()
    print_table(_table(("scaling stops at", "ring", "tree"), stop_lines(limits)), console)
    console.print()
    print_table(_table(COLUMNS, rows(limits)), console)
    console.print(caption(limits), style="dim", highlight=False)


def _table(names: Sequence[str], found: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for index, name in enumerate(names):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    for row in found:
        table.add_row(*row)
    return table
