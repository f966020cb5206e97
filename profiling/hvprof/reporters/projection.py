"""A projection on the terminal, as JSON, and as a page with its picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from hvd_ext.units import counted
from hvprof.analysis.projection.projection import Projection
from hvprof.reporters.page import svg
from hvprof.reporters.page.page import render_page
from hvprof.reporters.page.sections.base import CONTROL, DATA, GOOD, Figure, Table
from hvprof.reporters.page.svg import Axis, Curve
from hvprof.reporters.terminal.columns import Column, print_columns

_COLUMNS = ("ranks", "measured", "projected", "interval", "efficiency", "naive", "note")
# A serial share that changes by more than this is not constant.
_STEADY = 0.05
# One size beyond a node shows the jump to several nodes; a second one shows the growth from there.
_SIZES_BEYOND = 2


def as_json(found: Projection, unit: str) -> dict[str, Any]:
    """A projection in JSON's types."""
    return {
        "unit": unit,
        **dataclasses.asdict(found),
    }


def verdict(found: Projection, unit: str) -> str:
    """The projection in a sentence or two."""
    last = found.projection[-1]
    less = 100 * (1 - last.low / last.throughput)
    more = 100 * (last.high / last.throughput - 1)
    text = (
        f"{counted(last.ranks, 'rank')}: {unit} {_figure(last.throughput)} (-{less:.0f} to "
        f"+{more:.0f} %), {100 * _efficiency(found, last.ranks, last.throughput):.0f} % efficiency "
        f"over {counted(found.measured[0].ranks, 'rank')}; {_cost(found)}."
    )
    if last.far:
        text += f" Far: {last.ranks / found.measured[-1].ranks:.3g} times what was measured."
    return text


def notes(found: Projection) -> Iterator[str]:
    """Notes for the reader, line by line."""
    jump, following = found.jump, found.next_size
    if jump:
        yield (
            f"A jump between {jump.below} and {jump.above} ranks: a rank's work takes "
            f"{100 * jump.share:.0f} % longer beyond it (a full node, another switch or "
            "algorithm)."
        )
    per_node = found.ranks_per_node
    if found.beyond_a_node < _SIZES_BEYOND and found.projection[-1].ranks > per_node:
        yield (
            f"{counted(found.beyond_a_node, 'measured size')} beyond a node of "
            f"{counted(per_node, 'rank')}: what the network between nodes costs is not known; "
            f"measure two sizes of several nodes."
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
        f"Next: measure {following.ranks} ranks; the projection there is give or take "
        f"{following.half_percent:.0f} %."
    )


def rows(found: Projection) -> Iterator[tuple[str, ...]]:
    """Measured and projected sizes, in the order of the columns."""
    for one in found.measured:
        runs = f"{one.runs} runs" if one.runs > 1 else ""
        speed, share = _figure(one.throughput), f"{100 * one.efficiency:.0f} %"
        yield (str(one.ranks), speed, "", "", share, "", runs)
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
        f"In {unit}; the batch of {kept} is kept. Projected: {_cost(found)}, from the measured "
        f"sizes and published trainings. Interval: {100 * found.confidence:.0f} %; it is longer "
        "downwards, because a limit may be reached at any doubling. Naive: the efficiency of "
        f"{counted(found.measured[-1].ranks, 'rank')} kept. Far: more than 4 times what was "
        "measured."
    )


def _cost(found: Projection) -> str:
    return f"twice the ranks take {100 * found.doubling:.1f} % longer for a rank's work"


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
    first, last = found.measured[0], found.measured[-1]
    sizes = [
        (last.ranks, *[last.throughput] * 3),
        *((one.ranks, one.throughput, one.low, one.high) for one in found.projection),
    ]
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
