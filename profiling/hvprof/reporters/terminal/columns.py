"""Tables that fit the terminal: the columns that matter least are left out, nothing is wrapped."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

_ANY_WIDTH = 10_000


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: its heading.
        drop: order in which columns are left out on a narrow terminal, the highest first; 0 stays.
        left: aligned to the left, as names are.
        style: style of its cells.
    """

    name: str
    drop: int = 0
    left: bool = False
    style: str = ""


Cells = Sequence[str | Text]


def print_columns(
    console: Console,
    columns: Sequence[Column],
    rows: Sequence[Cells],
    *,
    title: str = "",
    lines_after: Collection[int] = (),
) -> None:
    """Print a table with as many of its columns as fit.

    A line that the terminal wraps can be read; a number that is cut short cannot. A table that is
    still too wide without the columns that may be dropped is therefore printed in its full width.

    Args:
        console: where the table is printed.
        columns: the columns in their order.
        rows: a cell for each column.
        title: title of the table.
        lines_after: indices of rows after which a line is drawn.
    """
    kept = [*range(len(columns))]
    empty = {i for i in kept if all(str(row[i]) in ("", "-") for row in rows)}
    # A column without values is left out, if it may be.
    kept = [i for i in kept if not (columns[i].drop and i in empty)]
    while True:
        table = _table([columns[i] for i in kept], [[row[i] for i in kept] for row in rows])
        for index in lines_after:
            table.rows[index].end_section = True
        unbounded = console.options.update_width(_ANY_WIDTH)
        table.width = console.measure(table, options=unbounded).maximum
        last = max(kept, key=lambda i: columns[i].drop)
        if table.width <= console.width or not columns[last].drop:
            break
        kept.remove(last)
    if title:
        # Not the table's title, which would be cut to the table's width.
        console.print(Text(title, style="bold"), soft_wrap=len(title) > console.width)
    console.print(table, crop=False)


def _table(columns: Sequence[Column], rows: Sequence[Cells]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(
            Text(column.name),
            justify="left" if column.left else "right",
            no_wrap=True,
            style=column.style,
        )
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table
