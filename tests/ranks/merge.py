"""One report for each phase of a test, from those of all ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

import pytest

from tests.ranks.job import Result

Phase = Literal["setup", "call", "teardown"]
PHASES: tuple[Phase, ...] = ("setup", "call", "teardown")
# Of objects, by which the same failure differs from rank to rank.
_ADDRESS = re.compile(r"\b0x[0-9a-f]+")


def merge(item: pytest.Item, size: int, result: Result) -> Iterator[pytest.TestReport]:
    """Failed where it failed on any rank, skipped where it was skipped on any."""
    from_data = item.config.hook.pytest_report_from_serializable
    reports = {
        rank: {report.when: report for report in (from_data(config=item.config, data=d) for d in r)}
        for rank, r in result.reports.items()
    }
    for phase in PHASES:
        of_phase = {rank: r[phase] for rank, r in reports.items() if phase in r}
        lost = result.lost if phase == "call" else {}
        failed = {rank: report for rank, report in of_phase.items() if report.failed}
        skipped = [report for report in of_phase.values() if report.skipped]
        sections = _printed(result, [*failed, *lost])
        duration_s = max((report.duration for report in of_phase.values()), default=0)
        if failed or lost:
            text = "\n\n".join(_told(failed, lost, size))
            yield failure(item, phase, text, sections, duration_s)
        elif of_phase:
            report = skipped[0] if skipped else next(iter(of_phase.values()))
            report.duration = duration_s
            yield report


def failure(
    item: pytest.Item,
    phase: Phase,
    text: str,
    sections: Sequence[tuple[str, str]] = (),
    duration_s: float = 0.0,
) -> pytest.TestReport:
    """A failed test, in our words; the first line stands in pytest's summary."""
    keywords: dict[str, Literal[1]] = dict.fromkeys(item.keywords, 1)
    return pytest.TestReport(
        item.nodeid, item.location, keywords, "failed", text, phase, sections, duration_s
    )


def _told(failed: dict[int, pytest.TestReport], lost: dict[int, str], size: int) -> Iterator[str]:
    """Each failure once, with the ranks that had it."""
    groups: dict[str, list[int]] = {}
    for rank, report in sorted(failed.items()):
        crash = getattr(report.longrepr, "reprcrash", None)
        message = crash.message.partition("\n")[0] if crash else "failed"
        text = _ADDRESS.sub("0x...", f"{message}\n{report.longreprtext}")
        groups.setdefault(text, []).append(rank)
    for rank, reason in sorted(lost.items()):
        groups.setdefault(reason, []).append(rank)
    for text, ranks in groups.items():
        yield f"{_names(ranks, size)}: {text}"


def _names(ranks: list[int], size: int) -> str:
    if len(ranks) == size > 1:
        return f"all {size} ranks"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} of {size}"


def _printed(result: Result, ranks: list[int]) -> list[tuple[str, str]]:
    """What the ranks printed that failed, as pytest shows what it captured."""
    texts = {f"Printed by rank {rank}": result.printed.get(rank, "") for rank in ranks}
    texts["Printed by the launcher"] = result.printed.get(None, "") if ranks else ""
    return [(title, text) for title, text in texts.items() if text.strip()]
