"""Results of `tune fusion`: a table, a picture, and JSON."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hvd_ext.system.files import atomic_path
from hvd_launch.tune.common.gains import gain_cells
from hvd_launch.tune.fusion.model import AUTOTUNE, CYCLES_MS, DEFAULT, THRESHOLDS_MIB, fit, predict
from hvd_launch.tune.fusion.runs import Found


def print_found(found: Found, folder: Path, console: Console) -> None:
    """Print the rates of the tried settings, the gains of the best, and how to use them."""
    unit = "runs/s" if found.by_wall_time else "rate"
    by = ", rates by wall time" if found.by_wall_time else ""
    table = _table(f"Tried once each{by}", "threshold, cycle time", unit, "the model's")
    model = fit(found.trials)
    for point, rate in sorted(found.trials.items(), key=lambda item: -item[1]):
        table.add_row(point.name, f"{rate:.4g}", f"{1 / predict(model, point):.4g}")
    console.print(table)
    columns = ("threshold, cycle time", unit, "times as fast", "95 % interval")
    table = _table(f"Interleaved{by}, against the defaults", *columns)
    for point, rates in found.finals.items():
        gained = gain_cells(found.gains[point]) if point in found.gains else ("", "")
        table.add_row(point.name, f"{statistics.median(rates):.4g}", *gained)
    console.print(table)
    if found.kept == DEFAULT:
        console.print("No setting was significantly faster than the defaults: nothing was written.")
        return
    console.print(
        f"Wrote {folder / 'fusion.sh'}. Before a job:\n    . {folder / 'fusion.sh'}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def as_json(found: Found) -> dict[str, Any]:
    return {
        "kept": found.kept.name,
        "settings": {s.name: s.value for s in found.kept.settings()}
        if found.kept != DEFAULT
        else {},
        "by_wall_time": found.by_wall_time,
        "trials": {point.name: rate for point, rate in found.trials.items()},
        "finals": {point.name: rates for point, rates in found.finals.items()},
        "times_as_fast": {point.name: asdict(gained) for point, gained in found.gains.items()},
    }


def dump(found: Found) -> str:
    return json.dumps(as_json(found), indent=2) + "\n"


def draw(found: Found, path: Path) -> bool:
    """Draw rate by threshold, a line for each cycle time; False without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for cycle_ms in CYCLES_MS:
        points = sorted(point for point in found.trials if point.cycle_ms == cycle_ms)
        if points:
            axes.plot(
                [point.threshold_mib for point in points],
                [found.trials[point] for point in points],
                "o-",
                label=f"cycle time {cycle_ms} ms",
            )
    for point, rates in found.finals.items():
        median = statistics.median(rates)
        if point == AUTOTUNE:
            axes.axhline(median, color="gray", linestyle="--", label="HOROVOD_AUTOTUNE")
            continue
        spread = [[median - min(rates)], [max(rates) - median]]
        axes.errorbar(point.threshold_mib, median, spread, fmt="k_", capsize=6)
    axes.plot([], [], "k_", label="interleaved runs: median, minimum and maximum")
    axes.set_xscale("log", base=2)
    axes.set_xticks(THRESHOLDS_MIB, [str(mib) for mib in THRESHOLDS_MIB])
    axes.set_xlabel("HOROVOD_FUSION_THRESHOLD (MiB)")
    axes.set_ylabel("runs/s, by wall time" if found.by_wall_time else "throughput as printed")
    axes.set_title(f"Kept: {found.kept.name}")
    axes.legend(fontsize="small")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    return True
