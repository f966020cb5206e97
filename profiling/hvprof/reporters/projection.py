"""A projection on the terminal, as JSON, and as a page with its picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from hvd_ext.units import counted
from hvprof.analysis.projection.projection import LEAST_SIZES, Projection
from hvprof.reporters.page import svg
from hvprof.reporters.page.page import render_page
from hvprof.reporters.page.sections.base import CONTROL, DATA, GOOD, Figure, Table
from hvprof.reporters.page.svg import Axis, Curve
from hvprof.reporters.terminal.columns import Column, print_columns

_COLUMNS = ("ranks", "measured", "projected", "interval", "efficiency", "naive", "note")
# A serial share that moves by more than this is no constant.
_STEADY = 0.05


def as_json(found: Projection, unit: str) -> dict[str, Any]:
    """A projection in JSON's types."""
    return {
        "unit": unit,
        **dataclasses.asdict(dataclasses.replace(found, scored=())),
        "scored": [{"shape": one.shape.name, "error": one.error} for one in found.scored],
    }


def verdict(found: Projection, unit: str) -> str:
    """The projection in a sentence or two."""
    last = found.projection[-1]
    less = 100 * (1 - last.low / last.throughput)
    more = 100 * (last.high / last.throughput - 1)
    shapes = " and ".join(found.used)
    text = (
        f"{counted(last.ranks, 'rank')}: {unit} {_figure(last.throughput)} (-{less:.0f} to "
        f"+{more:.0f} %), {100 * _efficiency(found, last.ranks, last.throughput):.0f} % efficiency "
        f"over {counted(found.measured[0].ranks, 'rank')}; shape: {shapes}."
    )
    if last.far:
        text += f" Far: {last.ranks / found.measured[-1].ranks:.3g} times what was measured."
    return text


def notes(found: Projection) -> Iterator[str]:
    """Notes for the reader, line by line."""
    jump, following = found.jump, found.next_size
    if jump:
        beyond = sum(one.ranks > jump.below for one in found.measured)
        few = "; only one size beyond it is known" if beyond < LEAST_SIZES - 1 else ""
        yield (
            f"A jump between {jump.below} and {jump.above} ranks: compute takes "
            f"{100 * jump.share:.0f} % longer beyond it (a full node, another switch or "
            f"algorithm){few}."
        )
    ideal = [one.ranks for one in found.measured if one.efficiency > 1 + _STEADY]
    if ideal:
        yield (
            f"More than ideal at {', '.join(map(str, ideal))} ranks: caches, or a smallest size "
            "that was slow."
        )
    shares = [one.serial for one in found.measured if one.serial is not None]
    if found.strong:
        grows = max(shares) - min(shares) > _STEADY
        meaning = "it changes with the ranks: overhead" if grows else "steady: serial work"
        yield f"Serial share (Karp-Flatt) {shares[0]:.3f} to {shares[-1]:.3f}; {meaning}."
    yield (
        f"Next: measure {following.ranks} ranks, where the projection is least certain "
        f"(give or take {following.half_percent:.0f} %)."
    )


def rows(found: Projection) -> Iterator[tuple[str, ...]]:
    """Measured and projected sizes, in the order of the columns."""
    for one in found.measured:
        runs = f"{one.runs} runs" if one.runs > 1 else ""
        speeds = (_figure(one.throughput), _figure(one.fitted))
        yield (str(one.ranks), *speeds, "", f"{100 * one.efficiency:.0f} %", "", runs)
    for size in found.projection:
        share = f"{100 * _efficiency(found, size.ranks, size.throughput):.0f} %"
        interval = f"{_figure(size.low)} to {_figure(size.high)}"
        naive = _figure(size.naive)
        speeds = (_figure(size.throughput), interval)
        yield (str(size.ranks), "", *speeds, share, naive, "far" if size.far else "")


def caption(found: Projection, unit: str) -> str:
    """Explanation of the columns."""
    kept = "all ranks" if found.strong else "a rank"
    return (
        f"In {unit}; the batch of {kept} is kept. Projected: {' and '.join(found.used)}, chosen "
        "because it predicts the larger measured sizes from the smaller. Interval: "
        f"{100 * found.confidence:.0f} %, of a run there. Naive: the efficiency of "
        f"{counted(found.measured[-1].ranks, 'rank')} kept. Far: more than 4 times what was "
        "measured."
    )


def render(found: Projection, unit: str, console: Console) -> None:
    """Print the verdict, the notes, and the table of sizes."""
    console.print(verdict(found, unit), style="bold", markup=False, highlight=False)
    for note in notes(found):
        console.print(note, markup=False, highlight=False)
    console.print()
    columns = [Column(name, drop=int(name == "naive")) for name in _COLUMNS]
    print_columns(console, columns, [*rows(found)])
    console.print(caption(found, unit), style="dim", highlight=False)


def projection_page(found: Projection, unit: str) -> str:
    """One offline page."""
    return render_page(
        "project.html.j2",
        as_json(found, unit),
        title="hvprof: projection",
        verdict=verdict(found, unit),
        notes=[*notes(found)],
        charts=[*_figures(found, unit)],
        table=Table("By number of ranks", _COLUMNS, [*rows(found)], caption(found, unit)),
    )


def _figures(found: Projection, unit: str) -> Iterator[Figure]:
    first = found.measured[0]
    sizes = [
        *((one.ranks, one.fitted, one.fitted, one.fitted) for one in found.measured),
        *((one.ranks, one.throughput, one.low, one.high) for one in found.projection),
    ]
    last = found.measured[-1]
    naive = [(last.ranks, last.throughput)]
    naive += [(one.ranks, one.naive) for one in found.projection]
    parts = (
        ("throughput", "Throughput", lambda ranks, value: value, 10),
        (
            "efficiency",
            f"Efficiency over {counted(first.ranks, 'rank')}",
            lambda ranks, value: 100 * _efficiency(found, ranks, value),
            None,
        ),
    )
    for name, title, shown, base in parts:
        form = (lambda value: f"{value:g} %") if name == "efficiency" else _figure
        yield Figure(
            name,
            title,
            f"Dots were measured, the line is projected, the band holds a run with "
            f"{100 * found.confidence:.0f} %. Naive: the efficiency of "
            f"{counted(last.ranks, 'rank')} kept.",
            svg.curves(
                name,
                [
                    Curve("naive", [(n, shown(n, x)) for n, x in naive], CONTROL, dots=False),
                    Curve(
                        "projected",
                        [(n, shown(n, x)) for n, x, _, _ in sizes],
                        DATA,
                        dots=False,
                        band=[(n, shown(n, low), shown(n, high)) for n, _, low, high in sizes],
                    ),
                    Curve(
                        "measured",
                        [(one.ranks, shown(one.ranks, one.throughput)) for one in found.measured],
                        GOOD,
                        line=False,
                    ),
                ],
                Axis("ranks", lambda value: f"{value:.0f}", base=2),
                Axis(unit if name == "throughput" else "", form, base=base),
            ),
        )


def _efficiency(found: Projection, ranks: float, throughput: float) -> float:
    first = found.measured[0]
    return throughput / first.throughput * first.ranks / ranks


def _figure(value: float) -> str:
    """Four digits, and no exponent where it would not help."""
    return f"{value:.4g}" if value < 1e4 else f"{value:.0f}"
