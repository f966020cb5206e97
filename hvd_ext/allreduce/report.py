"""A measured table on the terminal: the crossovers."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_ext.allreduce.algorithms import NATIVE
from hvd_ext.allreduce.carrier_names import usual_carrier
from hvd_ext.allreduce.table import Row
from hvd_ext.units import format_bytes, format_seconds


def report(rows: Sequence[Row]) -> None:
    """Print the crossovers of each row."""
    from rich.console import Console
    from rich.table import Table as Shown

    console = Console()
    for row in rows:
        usual = usual_carrier(row.nodes) if row.memory == "device" else NATIVE
        shown = Shown(title=row.describe(), title_justify="left")
        for name in ("from", "algorithm", "takes", f"{usual} takes"):
            shown.add_column(name, justify="left" if name == "algorithm" else "right")
        measured = dict(row.measured_us)
        for least, name in row.choices:
            times = measured.get(least, row.measured_us[0][1])
            figures = (format_seconds(times[n] / 1e6) for n in (name, usual))
            shown.add_row(format_bytes(least), name, *figures)
        console.print(shown)
