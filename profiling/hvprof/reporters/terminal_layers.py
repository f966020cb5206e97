"""The table of layers on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hvd_ext.units import format_bytes, format_seconds
from hvprof.layers.table import LayerTable
from hvprof.reporters.terminal import print_table


def render(table: LayerTable, console: Console) -> None:
    """Print each layer's time by batch, when its gradient is ready, and the skinny ones."""
    shown = Table(
        title=Text(
            f"{table.model} on {' x '.join(map(str, table.input_shape))}: forward and backward"
        ),
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
    )
    for name in ("layer", "kind", "matrix product"):
        shown.add_column(name, no_wrap=True)
    for name in ("gradient", "ready after", *(f"batch {batch}" for batch in table.batches)):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("")
    skinny = table.skinny
    for layer in table.layers:
        shown.add_row(
            Text(layer.name),
            Text(layer.kind),
            layer.product,
            format_bytes(layer.gradient_bytes) if layer.gradient_bytes else "-",
            format_seconds(layer.ready_s) if layer.ready_s else "-",
            *(format_seconds(layer.time_s(index)) for index in range(len(table.batches))),
            "skinny" if layer in skinny else "",
        )
    shown.add_section()
    sums = [sum(one.time_s(index) for one in table.layers) for index in range(len(table.batches))]
    total_bytes = sum(layer.gradient_bytes for layer in table.layers)
    shown.add_row("all", "", "", format_bytes(total_bytes), "", *map(format_seconds, sums), "")
    print_table(shown, console)
    console.print(
        f"Median of {table.repeats}, {table.threads} threads. Matrix product: rows of one sample x "
        "inner x columns.\nSkinny: a sample costs more than twice as much in the smallest batch "
        "as in the largest. Ready: after backward began, at the largest batch.",
        style="dim",
        highlight=False,
    )
