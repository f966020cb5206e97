"""Results of `tune allreduce --simulate` and `--calibrate`, for a person and for a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hvd_ext.allreduce.algorithms import NATIVE
from hvd_ext.allreduce.table import Row
from hvd_ext.system.files import atomic_path
from hvd_ext.units import counted, format_bytes, format_seconds
from hvd_launch.tune.allreduce.simulated import Plan


def print_plan(planned: Plan, sizes: Sequence[int], console: Console) -> None:
    """Print the planned simulations, and their time."""
    table = Table(title="To simulate", title_justify="left")
    for name in ("nodes x ranks", "algorithms", "messages", "cases"):
        table.add_column(name, justify="left" if name == "algorithms" else "right")
    for situation in planned.situations:
        cases = [case for case in planned.cases if case.situation == situation]
        names = dict.fromkeys(case.algorithm for case in cases)
        span = f"{format_bytes(sizes[0])} to {format_bytes(sizes[-1])}"
        table.add_row(situation.describe(), ", ".join((NATIVE, *names)), span, str(len(cases) + 1))
    console.print(table)
    for line in planned.refused:
        console.print(line, markup=False, highlight=False)
    console.print(f"about {format_seconds(planned.expected_s(sizes))} on this machine")


def print_rows(rows: Sequence[Row], console: Console) -> None:
    """Print the fastest algorithm by message size, a table for each row."""
    for row in rows:
        table = Table(
            title=f"{counted(row.nodes, 'node')}, {counted(row.ranks_per_node, 'rank')} per node, "
            f"simulated on a {row.simulated}",
            title_justify="left",
        )
        for name in ("message", "takes", "time", "library's own", "times as fast"):
            table.add_column(name, justify="left" if name == "takes" else "right")
        for size, by_name in row.measured_us:
            name = next(name for least, name in reversed(row.choices) if least <= size)
            native = by_name[NATIVE]
            table.add_row(
                format_bytes(size),
                name,
                format_seconds(by_name[name] / 1e6),
                format_seconds(native / 1e6),
                f"{native / by_name[name]:.2f}",
            )
        console.print(table)


def print_platform(found: Mapping[str, float], path: Path, console: Console) -> None:
    """Print the result of a calibration."""
    table = Table(title="This cluster, as the simulator sees it", title_justify="left")
    for name in ("", "value"):
        table.add_column(name, justify="left" if not name else "right")
    for name, value in found.items():
        table.add_row(name, f"{value:.4g}")
    console.print(table)
    console.print(f"Wrote {path}", markup=False, highlight=False, soft_wrap=True)
    console.print("Edit its topology, and pass it to tune allreduce --simulate.")


def as_json(rows: Sequence[Row], planned: Plan) -> dict[str, Any]:
    """Return the result in JSON's types; times are in us."""
    return {
        "rows": [
            {
                "nodes": row.nodes,
                "ranks_per_node": row.ranks_per_node,
                "simulated": row.simulated,
                "choices": [list(choice) for choice in row.choices],
                "simulated_us": {size: dict(by_name) for size, by_name in row.measured_us},
            }
            for row in rows
        ],
        "refused": list(planned.refused),
    }


def draw(rows: Sequence[Row], path: Path) -> bool:
    """Draw time by message size, all algorithms, a panel for each row; False without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(4.5 * len(rows), 4), layout="constrained")
    for axes, row in zip(figure.subplots(1, len(rows), squeeze=False)[0], rows, strict=True):
        names = dict.fromkeys(name for _, by_name in row.measured_us for name in by_name)
        for name in names:
            points = [(size, t[name]) for size, t in row.measured_us if name in t]
            style = "k--" if name == NATIVE else "-"
            axes.plot(*zip(*points, strict=True), style, marker=".", label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("bytes")
        axes.set_ylabel("us, simulated")
        axes.set_title(f"{counted(row.nodes, 'node')} x {row.ranks_per_node}")
        axes.legend(fontsize="small")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    return True
