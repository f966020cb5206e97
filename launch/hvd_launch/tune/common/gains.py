"""A gain in the cells of a table."""

from __future__ import annotations

from hvd_ext.arithmetic.statistics import Interval


def gain_cells(found: Interval) -> tuple[str, str]:
    """Format a gain, and its interval if there were enough rounds."""
    if found.uncertain:
        return f"{found.estimate:.2f}", "too few rounds"
    return f"{found.estimate:.2f}", f"{found.low:.2f} to {found.high:.2f}"
