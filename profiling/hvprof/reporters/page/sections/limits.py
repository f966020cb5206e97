"""Where scaling stops."""

from __future__ import annotations

from hvprof.analysis.limits.exchange import RING, TREE
from hvprof.analysis.limits.limits import Limits
from hvprof.reporters.limits_text import COLUMNS, caption, facts, rows, verdict
from hvprof.reporters.page import svg
from hvprof.reporters.page.sections.base import (
    BAD,
    CONTROL,
    DATA,
    WAIT,
    Figure,
    Page,
    Section,
    Table,
)
from hvprof.reporters.page.svg import Axis, Curve


def section(page: Page) -> Section:
    """Speed on more ranks, as far as the recording shows."""
    found = page.analysis.limits
    if found is None:
        return Section("Where scaling stops", ())
    table = Table("By number of ranks", COLUMNS, [*rows(found)], caption(found))
    return Section("Where scaling stops", [_figure(found)], [table])


def _figure(found: Limits) -> Figure:
    ring, tree = found.by_algorithm[RING], found.by_algorithm[TREE]
    base_s, base = found.step.time_s, found.base_ranks
    ranks = [step.ranks for step in ring.strong]
    strong = Curve(
        "same batch in all",
        [(step.ranks, base_s / step.time_s) for step in ring.strong],
        DATA,
        dots=False,
        band=[
            (step.ranks, base_s / step.no_overlap_s, base_s / step.full_overlap_s)
            for step in ring.strong
        ],
    )
    return Figure(
        "limits",
        "Speedup on more ranks",
        f"{verdict(found)} {' '.join(facts(found))} Band: if nothing of the exchange were hidden, "
        "and if all of compute could hide it.",
        svg.curves(
            "limits",
            [
                Curve("ideal", [(n, n / base) for n in ranks], CONTROL, dots=False),
                strong,
                Curve(
                    "as a tree",
                    [(step.ranks, base_s / step.time_s) for step in tree.strong],
                    BAD,
                    dots=False,
                ),
                Curve(
                    "same batch a rank",
                    [(one.ranks, one.ranks / base * base_s / one.time_s) for one in ring.weak],
                    WAIT,
                    dots=False,
                ),
            ],
            Axis("ranks", lambda value: f"{value:.0f}", base=2),
            Axis("speedup", lambda value: f"{value:g} x", base=10),
        ),
    )
