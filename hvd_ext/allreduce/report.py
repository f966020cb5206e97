"""The result of a measurement on the terminal: the crossovers, and the fit of the cost model."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hvd_ext.allreduce.algorithms import NATIVE
from hvd_ext.allreduce.cost import FORMULAS, Measurement, fit, leave_one_out
from hvd_ext.allreduce.table import Row
from hvd_ext.units import format_bytes, format_seconds


def report(rows: Sequence[Row]) -> None:
    """Print the crossovers, and how well the cost model fits."""
    from rich.console import Console
    from rich.table import Table as Shown

    console = Console()
    for row in rows:
        shown = Shown(title=row.describe(), title_justify="left")
        for name in ("from", "algorithm", "takes", "native takes"):
            shown.add_column(name, justify="left" if name == "algorithm" else "right")
        measured = dict(row.measured_us)
        for least, name in row.choices:
            times = measured.get(least, row.measured_us[0][1])
            figures = (format_seconds(times[n] / 1e6) for n in (name, NATIVE))
            shown.add_row(format_bytes(least), name, *figures)
        console.print(shown)
        console.print(_fit_sentence(row), soft_wrap=True, highlight=False)


def _fit_sentence(row: Row) -> str:
    size = row.nodes * row.ranks_per_node
    points = [
        Measurement(name, size, message_bytes, us / 1e6)
        for message_bytes, times in row.measured_us
        for name, us in times.items()
        if name in FORMULAS
    ]
    if size == 1 or len(row.measured_us) < 2:
        return "no cost model: it needs two ranks and two sizes"
    rates = fit(points)
    by_name = {name: [p for p in points if p.algorithm == name] for name in FORMULAS}
    errors = [leave_one_out(of_one) for of_one in by_name.values()]
    return (
        f"cost model: latency {format_seconds(rates.latency_s)}, "
        f"{1e9 * rates.byte_s:.3g} ns a byte sent, "
        f"{1e9 * rates.reduction_s:.3g} ns a byte reduced; "
        f"median error {statistics.median(e.median for e in errors):.0%} "
        f"(worst {max(e.worst for e in errors):.0%}) if fitted to one algorithm, "
        f"{leave_one_out(points).median:.0%} to all"
    )
