"""The first difference between ranks, for recordings with fingerprints."""

from __future__ import annotations

from collections.abc import Mapping

from hvprof.analysis.audit import Outcome
from hvprof.reporters.audit import ranks_text, steps_text, when
from hvprof.reporters.page.sections.base import Page, Section, Table

_TITLE = "Audit of the ranks"
_COLUMNS = ("optimizer", "first difference", "kind", "parameter", "ranks")


def section(page: Page) -> Section:
    """The first difference between ranks that ought to hold the same."""
    if page.audit is None:
        return Section(_TITLE, ())
    if isinstance(page.audit, str):
        return Section(_TITLE, (), [Table("Not compared", ("reason",), [[page.audit]], "")])
    return Section(_TITLE, (), [_table(page.audit)])


def _table(outcomes: Mapping[tuple[str, int], Outcome]) -> Table:
    rows: list[list[object]] = []
    points: dict[str, None] = {}
    for (_, number), outcome in outcomes.items():
        found = outcome.difference
        if found is None:
            rows.append([number, f"none in {steps_text(outcome.steps)}", "-", "-", "-"])
            continue
        parameter = found.parameter or "-"
        if found.more:
            parameter += f" and {found.more} more"
        rows.append([number, when(found), found.kind, parameter, ranks_text(found.ranks)])
        points[f"A difference in the {found.kind} points to {found.points_to}."] = None
    caption = " ".join(points) + (
        " Ranks must hold the same sums of gradients and the same parameters after every step. "
        "hvprof audit A B compares two runs, with their inputs and each rank's gradients too."
    )
    return Table("First difference", _COLUMNS, rows, caption.strip())
