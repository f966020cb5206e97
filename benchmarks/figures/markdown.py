"""Numbers and tables in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def number(value: float) -> str:
    """Three digits, or all before the point: 0.123, 1.23, 12.3, 1,234; 0 alone."""
    size = abs(value)
    return (
        f"{value:,.0f}"
        if size >= 100 or size == 0
        else f"{value:.{1 if size >= 10 else 2 if size >= 1 else 3}f}"
    )


def spread(found: Mapping[str, float]) -> str:
    """The median of `testbed.timing.summary`, and its middle half."""
    return f"{number(found['median'])} ({number(found['low'])} to {number(found['high'])})"


def ratio(value: float) -> str:
    """A ratio with two digits after the point."""
    return number(value) if value >= 10 else f"{value:.2f}"


def ratio_of_rounds(found: Mapping[str, float]) -> str:
    """The median of a ratio over the rounds, and its middle half."""
    return f"{ratio(found['median'])} ({ratio(found['low'])} to {ratio(found['high'])})"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def origin(result: Mapping[str, Any]) -> str:
    """The machine, the date and the command of a result."""
    return f"{measured_on(result)}: `{result['command']}`"


def measured_on(result: Mapping[str, Any]) -> str:
    """The machine and the date of a result."""
    machine = result["machine"]
    mpi = f", {result['mpi']}" if "mpi" in result else ""
    mpi = re.sub(r" v(?=\d)", " ", mpi)
    return f"{machine['cpu']}, {machine['cores']} cores{mpi}, {machine['date']}"
