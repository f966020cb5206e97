"""Ranks, and which wait for which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from hvd_ext.units import format_seconds
from hvprof.analysis.summary import sized
from hvprof.analysis.waiting.wait_split import Split
from hvprof.model import Recording
from hvprof.reporters.page import svg
from hvprof.reporters.page.sections.base import (
    DATA,
    WAIT,
    Figure,
    Page,
    Section,
    grouped,
    ranks_title,
)
from hvprof.reporters.page.svg import Series
from hvprof.reporters.text import scaled_seconds


def section(page: Page) -> Section:
    """Time of each rank by operation, and the ranks that others wait for."""
    analysis = page.analysis
    figures = [*_ranks(analysis.recording), *_waiting(analysis.wait_split)]
    return Section("Ranks, and which wait for which", figures)


def _ranks(recording: Recording) -> Iterator[Figure]:
    """The heat map: time of each rank by operation."""
    sums: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for rank in recording.ranks:
        for region in rank.regions:
            if region.kind == "communication":
                sums["blocked"][rank.rank] += region.time_s
        for cell in rank.cells:
            if cell.traffic == "data":
                label = sized(cell.operation, cell.low_bytes)
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
        "Time by rank and operation",
        "Times of each rank; the strongest color is a row's longest. A faint "
        "column is a rank that others wait for, since it arrives last and waits least."
        + (
            " A column holds several ranks, and shows the one farthest from the mean."
            if several
            else ""
        ),
        svg.heat("ranks", labels, names, values, scaled_seconds, ranks_title(len(table[0]), names)),
    )


def _waiting(split: Split | None) -> Iterator[Figure]:
    """Waiting against transfer by operation and by rank, and the ranks waited for."""
    if split is None or not split.time_s:
        return
    parts = split.by_operation[:8]
    share = 100 * split.wait_s / split.time_s
    yield Figure(
        "wait",
        f"Wait against transfer: {share:.0f} % is waiting",
        f"These are a rank's collectives, as a mean over the ranks. {split.note}",
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
            f"Ranks that others wait for: rank {first[0][0]} most",
            f"Time that other ranks waited for this one, as a mean over all ranks. {split.note}",
            svg.bars(
                "waited for",
                [f"rank {rank}" for rank, _ in first],
                [Series("waited for", [time_s for _, time_s in first], WAIT)],
                format_seconds,
            ),
        )
