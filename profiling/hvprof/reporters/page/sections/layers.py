"""The layers of the model."""

from __future__ import annotations

from collections.abc import Iterator

from hvd_ext.units import counted, format_bytes, format_seconds
from hvprof.layers.table import LayerTable
from hvprof.reporters.page import svg
from hvprof.reporters.page.sections.base import BAD, COMPUTE, DATA, Figure, Page, Section, Table
from hvprof.reporters.page.svg import Axis, Curve, Series
from hvprof.reporters.text import seconds_text

_MOST_LAYERS = 16


def section(page: Page) -> Section:
    """Compute by layer, where it was measured."""
    if page.layers is None:
        return Section("Layers", ())
    return Section("Layers", [*_figures(page.layers)], [_table(page.layers)])


def _figures(table: LayerTable) -> Iterator[Figure]:
    """Compute time layer by layer, and how it shrinks with the batch."""
    last = len(table.batches) - 1
    heaviest = sorted(table.layers, key=lambda one: -one.time_s(last))[:_MOST_LAYERS]
    chosen = [one for one in table.layers if one in heaviest]
    yield Figure(
        "layers",
        f"Compute by layer at a batch of {table.batches[last]}",
        f"The slowest of {counted(len(table.layers), 'layer')}, {len(chosen)} in all, in the order "
        "of the forward pass.",
        svg.bars(
            "layers",
            [one.name for one in chosen],
            [
                Series("forward", [one.forward_s[last] for one in chosen], COMPUTE),
                Series("backward", [one.backward_s[last] for one in chosen], DATA),
            ],
            format_seconds,
        ),
    )
    total = [
        (batch, sum(one.time_s(index) for one in table.layers) / batch)
        for index, batch in enumerate(table.batches)
    ]
    skinny = [
        (batch, sum(one.time_s(index) for one in table.skinny) / batch)
        for index, batch in enumerate(table.batches)
    ]
    lines = [Curve("all layers", total, COMPUTE)]
    if table.skinny:
        lines.append(Curve("skinny layers", skinny, BAD))
    yield Figure(
        "batch",
        "Compute for one sample against the batch of a rank",
        "Where the line is flat, half the batch takes half the time. Where it rises to the left, "
        "splitting a fixed batch over more ranks stops paying. In a skinny layer a sample costs "
        "more than twice as much at the smallest batch as at the largest.",
        svg.curves(
            "batch",
            lines,
            Axis("batch of a rank", lambda value: f"{value:.0f}", base=2),
            Axis("a sample", format_seconds, base=10),
        ),
    )
    ready = sorted((one for one in table.layers if one.gradient_bytes), key=lambda o: o.ready_s)
    points, done = [(0.0, 0.0)], 0
    for one in ready:
        points += [(one.ready_s, done / 1e6), (one.ready_s, (done + one.gradient_bytes) / 1e6)]
        done += one.gradient_bytes
    if done:
        yield Figure(
            "ready",
            f"When gradients are ready: {format_bytes(done)} in all",
            "The curve shows the bytes of gradients that are ready, by the time since backward "
            "began. Early gradients can be reduced behind the rest of backward.",
            svg.curves(
                "gradients ready",
                [Curve("ready", points, DATA, dots=False)],
                Axis("since backward began", format_seconds),
                Axis("MB", lambda value: f"{value:g}"),
            ),
        )


def _table(layers: LayerTable) -> Table:
    last = len(layers.batches) - 1
    skinny = set(layers.skinny)
    names = ["layer", "kind", "matrix product", "gradient", "ready after"]
    names += [f"batch {batch}" for batch in layers.batches] + ["skinny"]
    table = [
        [
            layer.name,
            layer.kind,
            layer.product or "-",
            format_bytes(layer.gradient_bytes) if layer.gradient_bytes else "-",
            seconds_text(layer.ready_s or None),
            *(format_seconds(layer.time_s(index)) for index in range(len(layers.batches))),
            "skinny" if layer in skinny else "",
        ]
        for layer in layers.layers
    ]
    caption = (
        f"The model is {layers.model} on {' x '.join(map(str, layers.input_shape))}, with "
        f"{layers.threads} threads; times are medians of {layers.repeats}. A matrix product is "
        "rows of one sample x inner x columns, and the batch multiplies the rows. Gradients are "
        f"ready so long after backward began, at a batch of {layers.batches[last]}."
    )
    return Table("All layers", names, table, caption)
