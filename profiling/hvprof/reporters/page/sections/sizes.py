"""The leading operation by message size, and what benchmarks measure of any operation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from hvd_ext.units import format_bytes, format_seconds
from hvprof.analysis.analysis import Analysis
from hvprof.analysis.summary import SIZE_ROWS, Row
from hvprof.model import Recording
from hvprof.reporters.page import svg
from hvprof.reporters.page.sections.base import DATA, WAIT, Figure, Page, Section, Table
from hvprof.reporters.page.svg import Axis, Curve, Series
from hvprof.reporters.text import bandwidth_text, calls_text, operation_text, seconds_text


def section(page: Page) -> Section:
    return Section(
        "By message size",
        [*_figures(page.analysis)],
        [_bandwidths(page.analysis.leading, page.peak_gb_s), _powers(page.analysis)],
    )


def _figures(analysis: Analysis) -> Iterator[Figure]:
    """Time by message size, and time of a call against its size."""
    found = analysis.leading
    if not found:
        return
    name = found[0].operation
    algorithms = sorted({row.algorithm for row in found})
    labels = [label for label, _ in SIZE_ROWS if any(row.message_size == label for row in found)]
    series = [
        Series(
            algorithm,
            [_sum_s(found, label, algorithm) for label in labels],
            color,
        )
        for algorithm, color in zip(algorithms, (1, 2, 4, 5, 6, 3, 7) * 4, strict=False)
    ]
    yield Figure(
        "sizes",
        f"{name[0].upper()}{name[1:]} time by message size",
        f"Time of a rank in {name}, as a mean over the ranks. A row includes its upper "
        "edge; KB and MB are binary in its name. The table below has calls and bandwidths.",
        svg.bars(f"{name} time", labels, series, format_seconds),
    )
    exact, between = _call_times(analysis.recording, name)
    curves = [
        Curve("powers of two", exact, DATA, line=False),
        Curve("other sizes", between, WAIT, line=False),
    ]
    yield Figure(
        "calls",
        "Time of a call against its size",
        f"This is the mean time of a call of {name}, over all ranks, for messages of exactly a "
        "power of two and for those between, which are drawn at their mean. Where it is flat, "
        "latency counts; where it rises with the size, bandwidth does.",
        svg.curves(
            "time of a call",
            [curve for curve in curves if curve.points],
            Axis("message", _bytes, base=16),
            Axis("a call", format_seconds, base=10),
        ),
    )


def _bandwidths(found: Sequence[Row], peak_gb_s: float | None) -> Table:
    best = peak_gb_s or max((row.busbw_gb_s or 0 for row in found), default=0)
    what = f"of {peak_gb_s:g} GB/s" if peak_gb_s else "of the best row"
    names = ["message size", "algorithm", "ranks", "calls", "total", "algbw", "busbw", what]
    names += ["median", "99 %", "longest"]
    table = [
        [
            row.message_size,
            row.algorithm,
            row.size,
            calls_text(row),
            format_seconds(row.time_s),
            bandwidth_text(row.algbw_gb_s),
            bandwidth_text(row.busbw_gb_s),
            f"{100 * row.busbw_gb_s / best:.3g} %" if row.busbw_gb_s and best else "-",
            seconds_text(row.p50_s),
            seconds_text(row.p99_s),
            format_seconds(row.max_s),
        ]
        for row in found
    ]
    caption = (
        "Calls and total are per rank; times include waiting for late ranks. The algbw is "
        "the message over its time; the busbw is the load of the links, of an allreduce 2(n-1)/n "
        "times the algbw. "
        "A GB is 10^9 bytes."
    )
    return Table("Calls and bandwidths by message size", names, table, caption)


def _powers(analysis: Analysis) -> Table:
    """Messages of benchmarks: a row for each power of two."""
    names = ["message", "operation", "ranks", "calls", "mean", "median", "shortest", "longest"]
    names += ["algbw", "busbw"]
    table = [
        [
            row.message_size,
            operation_text(row),
            row.size,
            calls_text(row),
            *map(seconds_text, (row.avg_s, row.p50_s, row.min_s, row.max_s)),
            bandwidth_text(row.algbw_gb_s),
            bandwidth_text(row.busbw_gb_s),
        ]
        for row in analysis.powers_of_two
    ]
    caption = (
        "Most calls of these operations have messages of exactly a power of two, as benchmarks "
        "send them. The times are of one call, over all ranks; KiB and MiB are binary, a GB is "
        "10^9 bytes."
    )
    return Table("Messages of a power of two", names, table, caption)


def _call_times(
    recording: Recording, operation: str
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Points (bytes, s) of an operation's calls: exact powers of two, and those between."""
    sums: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for rank in recording.ranks:
        for cell in rank.cells:
            if cell.operation == operation and cell.traffic == "data" and cell.message_bytes:
                total = sums[cell.low_bytes, cell.high_bytes]
                amounts = (cell.calls, cell.message_bytes, cell.time_s)
                total[:] = [before + more for before, more in zip(total, amounts, strict=True)]
    exact: list[tuple[float, float]] = []
    between: list[tuple[float, float]] = []
    for (low, high), (calls, total_bytes, time_s) in sorted(sums.items()):
        if time_s > 0:
            (exact if low == high else between).append((total_bytes / calls, time_s / calls))
    return exact, between


def _sum_s(found: Sequence[Row], label: str, algorithm: str) -> float:
    return sum(
        row.time_s for row in found if (row.message_size, row.algorithm) == (label, algorithm)
    )


def _bytes(value: float) -> str:
    return format_bytes(int(value))
