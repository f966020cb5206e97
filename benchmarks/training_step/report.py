"""benchmarks.training_step's figures as tables and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hvd_ext.units import format_bytes

_WIDTH = 116  # what the tables need


def show(case: dict[str, Any]) -> None:
    """Print a model's steps, and what they are made of."""
    console = Console(width=max(_WIDTH, Console().width))
    console.print(_steps(case))
    console.print(_made_of(case))
    ratios = [f"{name} {value:.2f}" for name, value in case.items() if isinstance(value, float)]
    console.print(", ".join(ratios), highlight=False)


def _steps(case: dict[str, Any]) -> Table:
    table = Table(
        title=f"{case['model']}: {case['about']}\n{case['parameters']} parameters, "
        f"{4e-6 * case['elements']:.1f} MB of gradients, {case['ranks']} ranks of one thread"
    )
    table.add_column("", no_wrap=True)
    for column in (
        "step ms",
        "middle half ms",
        "over alone",
        "memory",
        "of it shared",
        "freed memory",
    ):
        table.add_column(column, justify="right")
    arms = case["arms"]
    for name, arm in arms.items():
        of = arm["step_ms"]
        over_ms = of["median"] - arms["alone"]["step_ms"]["median"] if "alone" in arms else None
        table.add_row(
            name,
            f"{of['median']:.1f}",
            f"{of['low']:.1f} to {of['high']:.1f}",
            "" if over_ms is None else f"{over_ms:.1f}",
            format_bytes(arm["memory_bytes"]),
            format_bytes(arm["memory_shared_bytes"]),
            arm["freed_memory"],
        )
    return table


def _made_of(case: dict[str, Any]) -> Table:
    table = Table(title="what a step of a rank is made of, in ms; times on a core by thread")
    arms = case["arms"]
    phases = ("forward", "backward", "update")
    found = {thread: None for arm in arms.values() for thread in arm["made_of"]["threads"]}
    threads = [thread for thread in found if thread != "other"]
    table.add_column("", no_wrap=True)
    for column in (*phases, *threads, "waits for a core", "page faults"):
        table.add_column(column, justify="right")
    for name, arm in arms.items():
        made_of = arm["made_of"]
        used = made_of["threads"]
        table.add_row(
            name,
            *(f"{made_of['phases_ms'][phase]:.1f}" for phase in phases),
            *(f"{used[thread]['cpu_ms']:.1f}" if thread in used else "" for thread in threads),
            f"{used['training']['run_queue_wait_ms']:.1f}",
            f"{sum(of_thread['page_faults'] for of_thread in used.values()):.0f}",
        )
    return table


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw each model's steps as bars, with the middle half of the times."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    cases = result["cases"]
    figure, rows = plt.subplots(
        len(cases), figsize=(8, 2.6 * len(cases)), layout="constrained", squeeze=False
    )
    for axes, case in zip(rows[:, 0], cases, strict=True):
        arms = case["arms"]
        times_ms = [arm["step_ms"] for arm in arms.values()]
        medians = [of["median"] for of in times_ms]
        halves = [
            [of["median"] - of["low"] for of in times_ms],
            [of["high"] - of["median"] for of in times_ms],
        ]
        colours = ["C2" if n.startswith("hvd_ext") else "C7" for n in arms]
        bars = axes.barh(list(arms), medians, xerr=halves, color=colours, ecolor="0.3")
        axes.bar_label(bars, [f"{median:.1f}" for median in medians], padding=8, fontsize=8)
        if "alone" in arms:
            axes.axvline(arms["alone"]["step_ms"]["median"], color="C3", lw=1, ls="--")
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_title(f"{case['about']}, {case['ranks']} ranks", fontsize=9)
        axes.set_xlabel("ms a step", fontsize=8)
        axes.tick_params(labelsize=8)
    figure.savefig(path, dpi=120)
