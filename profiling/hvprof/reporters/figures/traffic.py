"""Figures of the traffic: allreduce by size, ranks, waiting, control, and comparisons."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from hvd_ext.units import format_bytes, format_seconds
from hvprof.analysis.summary import SIZE_ROWS, Row, rows, size_row
from hvprof.analysis.wait_split import Split
from hvprof.format.key import TRAFFIC
from hvprof.recording.model import Recording
from hvprof.reporters import svg
from hvprof.reporters.figures.base import (
    CONTROL,
    DATA,
    WAIT,
    Figure,
    grouped,
    ranks_title,
)
from hvprof.reporters.svg import Axis, Curve, Series


def allreduce(recording: Recording) -> Iterator[Figure]:
    """Time by message size, and time of a call against its size."""
    found = [row for row in rows(recording, "data") if row.operation == "allreduce"]
    if not found:
        return
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
        "Allreduce time by message size",
        "Time of a rank in allreduce, mean over the ranks. A row includes its upper edge; KB and "
        "MB are binary in row names. The table below has calls, bandwidths and quantiles.",
        svg.bars("allreduce time", labels, series, format_seconds),
    )
    exact, between = _call_times(recording)
    curves = [
        Curve("powers of two", exact, DATA, line=False),
        Curve("other sizes", between, WAIT, line=False),
    ]
    yield Figure(
        "calls",
        "Time of a call against its size",
        "Mean time of an allreduce call, over all ranks, for messages of exactly a power of two "
        "and for those between (drawn at their mean). Flat: latency counts. Rising with the "
        "size: bandwidth.",
        svg.curves(
            "time of a call",
            [curve for curve in curves if curve.points],
            Axis("message", _bytes, base=16),
            Axis("a call", format_seconds, base=10),
        ),
    )


def ranks(recording: Recording) -> Iterator[Figure]:
    """The heat map: what each rank spent where."""
    sums: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for rank in recording.ranks:
        for region in rank.regions:
            if region.kind == "communication":
                sums["blocked"][rank.rank] += region.time_s
        for cell in rank.cells:
            if cell.traffic == "data":
                label = f"{cell.operation} {SIZE_ROWS[size_row(cell.low_bytes)][0]}"
                sums[label][rank.rank] += cell.time_s
            elif cell.traffic == "control":
                sums["control"][rank.rank] += cell.time_s
    if not sums or len(recording.ranks) < 2:
        return
    labels = sorted(sums, key=lambda label: -sum(sums[label].values()))[:10]
    table = [[(rank.rank, sums[label][rank.rank]) for rank in recording.ranks] for label in labels]
    names, values = grouped(*table, unusual=True)
    several = len(recording.ranks) > len(names)
    yield Figure(
        "ranks",
        "Who spends how long where",
        "Time of each rank, the strongest colour for a row's longest: a faint column is a rank "
        "that others wait for, since it arrives last and waits least."
        + (
            " A column holds several ranks, and shows the one farthest from the mean."
            if several
            else ""
        ),
        svg.heat("ranks", labels, names, values, format_seconds, ranks_title(len(table[0]), names)),
    )


def waiting(split: Split | None) -> Iterator[Figure]:
    """Waiting against transfer by operation and by rank, and who was waited for."""
    if split is None or not split.time_s:
        return
    parts = split.by_operation[:8]
    share = 100 * split.wait_s / split.time_s
    yield Figure(
        "wait",
        f"Wait against transfer: {share:.0f} % is waiting",
        f"Collectives of a rank, mean over the ranks. {split.note}",
        svg.bars(
            "wait against transfer",
            [label for label, _, _ in parts],
            [
                Series("transfer", [transfer for _, transfer, _ in parts], DATA),
                Series("wait", [wait for _, _, wait in parts], WAIT),
            ],
            format_seconds,
        ),
    )
    first = split.waited_for[:8]
    if first:
        yield Figure(
            "late",
            f"Who is waited for: rank {first[0][0]} most",
            f"Time that ranks waited for this one, as a mean over all ranks. {split.note}",
            svg.bars(
                "waited for",
                [f"rank {rank}" for rank, _ in first],
                [Series("waited for", [time_s for _, time_s in first], WAIT)],
                format_seconds,
            ),
        )


def control(recording: Recording) -> Iterator[Figure]:
    """Horovod's coordination, and what hvd_ext sends below its reductions."""
    found = {kind: rows(recording, kind) for kind in TRAFFIC}
    if not found["control"] and not found["transport"]:
        return
    operations: dict[tuple[str, str], float] = defaultdict(float)
    for kind in TRAFFIC[1:]:
        for row in found[kind]:
            operations[(kind, row.operation)] += row.time_s
    order = sorted(operations.items(), key=lambda item: -item[1])[:8]
    labels = [f"{kind}: {operation}" for (kind, operation), _ in order]
    calls = sum(row.calls for row in found["control"]) // len(recording.ranks)
    yield Figure(
        "control",
        "Control traffic, apart from the data",
        f"Horovod's ranks agree on what is ready: {calls} calls of a rank. Mostly waiting, on a "
        "thread of its own. Transport is what hvd_ext sends for reductions it reports as data.",
        svg.bars(
            "control traffic",
            labels,
            [Series("time of a rank", [time_s for _, time_s in order], CONTROL)],
            format_seconds,
        ),
    )


def _call_times(
    recording: Recording,
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Points (bytes, s) of allreduce calls: exact powers of two, and what lies between."""
    sums: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for rank in recording.ranks:
        for cell in rank.cells:
            if cell.operation == "allreduce" and cell.traffic == "data" and cell.message_bytes:
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
