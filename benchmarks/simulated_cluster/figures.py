"""Results of benchmarks.simulated_cluster, as tables and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from hvd_ext.system.files import atomic_path
from hvd_ext.units import format_bytes, format_seconds


def show(result: dict[str, Any]) -> None:
    """Print a table for each part that was run."""
    console = Console()
    if "choices" in result:
        _show_choices(result, console)
    if "slopes" in result:
        _show_growth(result, console)
    if "selectors" in result:
        _show_selectors(result["selectors"], console)
    if "steps" in result:
        _show_steps(result["steps"], console)


def draw(result: dict[str, Any], folder: Path) -> None:
    """Draw growth.png and steps.png into `folder`."""
    if "growth_s" in result:
        draw_growth(result, folder / "growth.png")
    if "steps" in result:
        models = dict.fromkeys(row["model"] for row in result["steps"])
        figure = Figure(figsize=(5 * len(models), 4), layout="constrained")
        for axes, model in zip(
            figure.subplots(1, len(models), squeeze=False)[0], models, strict=True
        ):
            rows = [row for row in result["steps"] if row["model"] == model]
            for name in ("hvd_ext", "horovod"):
                axes.plot(
                    [row["nodes"] for row in rows],
                    [100 * row[f"{name}_efficiency"] for row in rows],
                    ".-",
                    label=name,
                )
            axes.set_title(model)
            _label(axes, "nodes of 4 ranks", "% of linear, simulated", logarithmic=False)
        _name_lines(figure)
        _save(figure, folder / "steps.png")


def draw_growth(result: Mapping[str, Any], path: Path) -> None:
    """Draw the times of `scaling.growth`, also as JSON has them: a dot for each one simulated."""
    growth = result["growth_s"]
    figure = Figure(figsize=(4.5 * len(growth), 4.2), layout="constrained")
    panels = figure.subplots(1, len(growth), squeeze=False)[0]
    for axes, (size, by_name) in zip(panels, growth.items(), strict=True):
        counts = sorted({int(count) for times in by_name.values() for count in times})
        for name, times in by_name.items():
            axes.plot(list(map(int, times)), [1e6 * t for t in times.values()], ".-", label=name)
        axes.set_title(format_bytes(int(size)))
        _label(axes, "ranks", "us, simulated")
        axes.set_xticks(counts, [f"{count:,}" for count in counts], fontsize="small")
    title = f"Simulated {result['platform']}, one rank on each node; a dot is a simulation"
    figure.suptitle(title, fontsize="medium")
    _name_lines(figure)
    _save(figure, path)


def _label(axes: Any, x: str, y: str, logarithmic: bool = True) -> None:
    axes.set_xscale("log", base=2)
    if logarithmic:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 105)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def _name_lines(figure: Figure) -> None:
    """Name the lines, which all panels share, below the panels: inside, a legend covers curves."""
    lines, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=len(names), fontsize="small")


def _save(figure: Figure, path: Path) -> None:
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


def _table(console: Console, title: str, columns: Sequence[str], rows: Sequence[Any]) -> None:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _show_choices(result: dict[str, Any], console: Console) -> None:
    rows = [
        (
            format_bytes(choice["message_bytes"]),
            choice["predicted"],
            choice["measured"],
            f"{100 * (choice['costs'] - 1):.0f} %",
        )
        for choice in result["choices"]
    ]
    columns = ("message", "predicted fastest", "measured fastest", "costs more")
    _table(console, f"{result['hosts'][-1]} emulated hosts", columns, rows)
    console.print(
        f"error: median {100 * result['median_error']:.1f} %, worst "
        f"{100 * result['worst_error']:.0f} %; right choices: {result['right_choices']} of "
        f"{len(result['choices'])}"
    )


def _show_growth(result: dict[str, Any], console: Console) -> None:
    rows = [
        (
            name,
            format_seconds(slope["s_per_rank"]),
            f"{slope['r2_ranks']:.3f}",
            format_seconds(slope["s_per_doubling"]),
            f"{slope['r2_doublings']:.3f}",
        )
        for name, slope in result["slopes"].items()
    ]
    columns = ("4 KiB", "a rank more", "r2", "twice the ranks", "r2")
    _table(console, f"Growth, {result['platform']}", columns, rows)
    for size, found in result["fastest"].items():
        parts = ", ".join(f"{name} from {count} ranks" for count, name in found)
        console.print(f"fastest for {format_bytes(int(size))}: {parts}")


def _show_selectors(found: Sequence[dict[str, Any]], console: Console) -> None:
    rows = []
    for _, group in groupby(found, key=lambda row: (row["ranks"], row["message_bytes"])):
        of_size = list(group)
        first = of_size[0]
        ratios = [f"{row['ratio']:.2f}" for row in of_size]
        rows.append(
            (str(first["ranks"]), format_bytes(first["message_bytes"]), first["algorithm"], *ratios)
        )
    names = dict.fromkeys(row["selector"] for row in found)
    columns = ("ranks", "message", "hvd_ext takes", *names)
    _table(console, "hvd_ext is as many times as fast as", columns, rows)
    for row in found:
        if "why" in row:
            size = format_bytes(row["message_bytes"])
            console.print(f"{row['ranks']} ranks, {size}, {row['selector']}: {row['why']}")


def _show_steps(found: Sequence[dict[str, Any]], console: Console) -> None:
    rows = [
        (
            row["model"],
            str(row["nodes"]),
            f"{row['hvd_ext_images_s']:.0f}",
            f"{100 * row['hvd_ext_efficiency']:.0f} %",
            f"{row['horovod_images_s']:.0f}",
            f"{100 * row['horovod_efficiency']:.0f} %",
        )
        for row in found
    ]
    columns = ("model", "nodes", "hvd_ext images/s", "efficiency", "Horovod", "efficiency")
    _table(console, "Steps, simulated", columns, rows)
