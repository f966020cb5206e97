"""The places in the program that call MPI."""

from __future__ import annotations

from hvd_ext.units import format_seconds
from hvprof.reporters.page.sections.base import Page, Section, Table

_LISTED = 32


def section(page: Page) -> Section:
    sites = page.analysis.sites
    rows = [
        [
            one.operation,
            one.place,
            one.ranks,
            one.calls,
            format_seconds(one.time_s),
            format_seconds(one.worst_s),
            format_seconds(one.wait_s),
            f"{one.percent:.3g} %",
            format_seconds(one.max_s),
        ]
        for one in sites[:_LISTED]
    ]
    names = ["operation", "place", "ranks", "calls", "total", "worst rank", "waiting", "of the run"]
    names += ["longest"]
    more = f" The longest {_LISTED} of {len(sites)}." if len(sites) > _LISTED else ""
    caption = (
        "Calls are those of the rank with the most, total is the mean over all ranks. Waiting is "
        "estimated for each operation, and divided among its places by what their calls take. "
        f"Lines of C and Fortran need addr2line and debugging information (-g).{more}"
    )
    return Section("Call sites", [], [Table("Calls by place in the program", names, rows, caption)])
