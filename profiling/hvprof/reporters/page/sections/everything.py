"""All operations, and control traffic apart from the data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from hvd_ext.units import format_bytes, format_seconds
from hvprof.analysis.analysis import Analysis
from hvprof.analysis.summary import Row, of_horovod
from hvprof.format.key import TRAFFIC
from hvprof.reporters.page import svg
from hvprof.reporters.page.sections.base import CONTROL, Figure, Page, Section, Table
from hvprof.reporters.page.svg import Series
from hvprof.reporters.text import calls_text, control_text, operation_text, seconds_text


def section(page: Page) -> Section:
    return Section(
        "All operations",
        [*_control(page.analysis)],
        [_everything(page.analysis)],
    )


def _control(analysis: Analysis) -> Iterator[Figure]:
    """Horovod's coordination, and what hvd_ext sends below its reductions."""
    found = analysis.rows
    if not found["control"] and not found["transport"]:
        return
    operations: dict[tuple[str, str], float] = defaultdict(float)
    for kind in TRAFFIC[1:]:
        for row in found[kind]:
            operations[(kind, row.operation)] += row.time_s
    order = sorted(operations.items(), key=lambda item: -item[1])[:8]
    labels = [f"{kind}: {operation}" for (kind, operation), _ in order]
    yield Figure(
        "control",
        "Control traffic, apart from the data",
        f"{_agreement(analysis)}Transport is messages of hvd_ext for reductions that it reports as "
        "data; tuning is exchanges of its measurements.",
        svg.bars(
            "control traffic",
            labels,
            [Series("time of a rank", [time_s for _, time_s in order], CONTROL)],
            format_seconds,
        ),
    )


def _agreement(analysis: Analysis) -> str:
    control = analysis.rows["control"]
    if not (horovods := of_horovod(control)):
        return f"Control is {control_text(control)}. " if control else ""
    calls = sum(row.calls for row in horovods) // len(analysis.recording.ranks)
    return (
        f"Horovod's ranks agree on ready gradients in {calls} calls of a rank: mostly waiting, on "
        "a separate thread. "
    )


def _everything(analysis: Analysis) -> Table:
    names = ["operation", "traffic", "message size", "calls", "bytes", "total", "worst rank"]
    names += ["median", "99 %", "longest"]
    table = [
        [
            operation_text(row),
            traffic,
            row.message_size,
            calls_text(row),
            _bytes_of(row, len(analysis.recording.ranks)),
            format_seconds(row.time_s),
            format_seconds(row.time_max_s),
            seconds_text(row.p50_s),
            seconds_text(row.p99_s),
            format_seconds(row.max_s),
        ]
        for traffic, of_traffic in analysis.rows.items()
        for row in of_traffic
    ]
    meanings = {
        "data": "the program's exchanges",
        "control": control_text(analysis.rows["control"]),
        "transport": "messages of hvd_ext for reductions listed under data",
        "tuning": "exchanges of hvd_ext's measurements",
    }
    kinds = "; ".join(f"{kind} is {meanings[kind]}" for kind in TRAFFIC if analysis.rows[kind])
    caption = (
        "Calls and bytes are a rank's. The time of a non-blocking operation (i...) is that of "
        f"starting it. {kinds[:1].upper()}{kinds[1:]}."
    )
    return Table("Operations by message size", names, table, caption)


def _bytes_of(row: Row, ranks: int) -> str:
    return format_bytes(row.message_bytes // ranks) if row.message_bytes else "-"
