"""hvprof check: a gate for continuous integration."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hvd_ext.errors import UsageError
from hvd_ext.units import counted
from hvprof.analysis.comparison.bootstrap import SLOWER
from hvprof.analysis.comparison.comparison import Comparison, interval_text

PASSED, REGRESSED = 0, 1


@dataclass(frozen=True, slots=True)
class GateOutcome:
    """Result of the gate: its exit code, and the reason in one line."""

    exit_code: int
    reason: str


def parse_percent(text: str) -> float:
    """Read "5%" or "5".

    Raises:
        UsageError: not a percentage from 0 on.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%?\s*", text)
    if match is None:
        raise UsageError(f"invalid percentage {text!r}: write --max-regression 5%")
    return float(match.group(1))


def check(comparison: Comparison, max_regression_percent: float) -> GateOutcome:
    """Whether the second side is slower than the first by more than is allowed.

    It is if the best estimate of the total's slowdown is above the limit, and the interval
    excludes that there is none. Noise does not fail a gate. If the interval is so wide that it may
    hide a larger slowdown, the reason says so.

    Raises:
        UsageError: there is nothing to compare, or each side is one run without blocks.
    """
    total, (first, second) = comparison.total, comparison.labels
    if total.improvement_percent is None:
        raise UsageError(f"{first} and {second} have no allreduce in common: nothing to check")
    if total.low_percent is None:
        raise UsageError(
            f"{comparison.runs[0]} and {counted(comparison.runs[1], 'run')} give no interval:"
            " record 2 or more a side, in a folder of recordings"
        )
    # In percent of the first side's time; positive means slower.
    slowdown, most = -total.improvement_percent, -total.low_percent
    limit = f"{max_regression_percent:g} % is allowed"
    interval = f"speedup {interval_text(total)}"
    if total.verdict == SLOWER and slowdown > max_regression_percent:
        return GateOutcome(
            REGRESSED,
            f"failed: {second} takes {slowdown:.1f} % more allreduce time than {first} "
            f"({interval}); {limit}",
        )
    if most > max_regression_percent:
        return GateOutcome(
            PASSED,
            f"passed: no evidence of a slowdown beyond the limit ({interval}; {limit}), but one "
            f"of {most:.1f} % is not excluded: record more runs",
        )
    return GateOutcome(PASSED, f"passed: {interval}; {limit}")
