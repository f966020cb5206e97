"""The table of programs before and after hvprof's advice, from `python -m tests.corpus`."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks.figures.markdown import number, origin, table


def advice(results: Mapping[str, Any]) -> str:
    """A row for each program, and how many of them run shorter."""
    result = results["advice"]
    rows = []
    for one in result["programs"]:
        gained = one["times_as_fast"]
        rows.append(
            (
                f"`{one['program']}`",
                one["advice"],
                *(_times(one[side]) for side in ("before_s", "after_s")),
                f"{gained['estimate']:.2f} ({gained['low']:.2f} to {gained['high']:.2f})",
            )
        )
    shorter = sum(one["times_as_fast"]["low"] > 1 for one in result["programs"])
    columns = ("program", "advice", "before, s", "after, s", "times as fast, of pairs")
    return "\n\n".join(
        (
            table(columns, rows),
            f"{shorter} of {len(rows)} run shorter. Times are medians with the range of "
            f"{result['pairs']} runs; ratios are geometric means of the pairs, with their 95 % "
            f"interval. {origin(result)}",
        )
    )


def _times(times_s: list[float]) -> str:
    return f"{number(median(times_s))} ({number(min(times_s))} to {number(max(times_s))})"
