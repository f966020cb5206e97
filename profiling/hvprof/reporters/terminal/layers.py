"""The table of layers on a terminal."""

from __future__ import annotations

from rich.console import Console

from hvd_ext.units import format_bytes, format_seconds
from hvprof.layers.table import LayerTable
from hvprof.reporters.terminal.columns import Column, print_columns


def render(table: LayerTable, console: Console) -> None:
    """Print each layer's time by batch, when its gradient is ready, and the skinny ones."""
    count = len(table.batches)
    columns = [
        Column("layer", left=True),
        Column("kind", drop=2, left=True),
        Column("matrix product", drop=3, left=True),
        Column("gradient"),
        Column("ready after", drop=1),
        *(Column(f"batch {batch}") for batch in table.batches),
        Column("", left=True),
    ]
    skinny = table.skinny
    rows = [
        (
            layer.name,
            layer.kind,
            layer.product,
            format_bytes(layer.gradient_bytes) if layer.gradient_bytes else "-",
            format_seconds(layer.ready_s) if layer.ready_s else "-",
            *(format_seconds(layer.time_s(index)) for index in range(count)),
            "skinny" if layer in skinny else "",
        )
        for layer in table.layers
    ]
    sums = [sum(one.time_s(index) for one in table.layers) for index in range(count)]
    total_bytes = sum(layer.gradient_bytes for layer in table.layers)
    rows.append(("all", "", "", format_bytes(total_bytes), "", *map(format_seconds, sums), ""))
    title = f"{table.model} on {' x '.join(map(str, table.input_shape))}: forward and backward"
    print_columns(console, columns, rows, title=title)
    console.print(
        f"Median of {table.repeats}, {table.threads} threads. Matrix product: rows of one sample x "
        "inner x columns. Skinny: a sample costs more than twice as much in the smallest batch "
        "as in the largest. Ready: after backward began, at the largest batch.",
        style="dim",
        highlight=False,
    )
