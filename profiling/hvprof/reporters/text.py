"""Numbers and names of a report as text, for the terminal and the page alike."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_ext.units import format_seconds, time_unit
from hvprof.analysis.summary import Row, of_horovod


def operation_text(row: Row) -> str:
    """The operation, and hvd_ext's algorithm if it named one."""
    return row.operation if row.algorithm == "native" else f"{row.operation} ({row.algorithm})"


def control_text(control: Sequence[Row]) -> str:
    """Name the library whose coordination this control traffic is."""
    of_its_own = "hvd_ext's monitored barriers"
    horovods = of_horovod(control)
    if not horovods:
        return of_its_own
    only = len(horovods) == len(control)
    return "Horovod's coordination" if only else f"Horovod's coordination and {of_its_own}"


def calls_text(row: Row) -> str:
    """Calls of a rank, as a range where the ranks differ."""
    even = row.calls_min == row.calls_max
    return str(row.calls_max) if even else f"{row.calls_min}-{row.calls_max}"


def bandwidth_text(gb_s: float | None) -> str:
    """A bandwidth with the decimal unit that keeps it short, or "-" where it is not known."""
    if gb_s is None:
        return "-"
    for factor, unit in ((1.0, "GB/s"), (1e-3, "MB/s")):
        if gb_s >= factor:
            return f"{gb_s / factor:.3g} {unit}"
    return f"{gb_s / 1e-6:.3g} kB/s"


def scaled_seconds(values: Sequence[float]) -> tuple[list[str], str]:
    """Times as numbers of one unit, three digits of the longest, and that unit."""
    longest_s = max(values, default=0.0)
    unit_s, unit = time_unit(longest_s)
    digits = 2 if longest_s < 10 * unit_s else 1 if longest_s < 100 * unit_s else 0
    return [f"{value / unit_s:.{digits}f}" for value in values], unit


def seconds_text(value: float | None) -> str:
    """A time, or "-" where it is not known."""
    return "-" if value is None else format_seconds(value)
