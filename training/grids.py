"""Groups of ranks that share each sample."""

from __future__ import annotations

import argparse
from math import prod
from types import ModuleType

from hvd_ext.errors import UsageError


def sample_groups(args: argparse.Namespace, hvd: ModuleType, channels: int = 1) -> int:
    """Return the number of groups of ranks of --grid.

    Args:
        args: its `grid` and `exchange` are read.
        hvd: the exchange.
        channels: ranks that have the same block of a sample.

    Raises:
        UsageError: the ranks cannot form such groups, or would have to do without an exchange.
    """
    grid, space = "x".join(map(str, args.grid)), prod(args.grid) * channels
    if channels > 1:
        grid += f" --channels {channels}"
    if space > 1 and args.exchange == "none":
        raise UsageError(
            f"--exchange none: the ranks that share a sample (--grid {grid}) must add up their "
            "gradients: leave --grid out, or name another exchange"
        )
    if hvd.size() % space:
        raise UsageError(
            f"--grid {grid} takes {space} ranks a sample, which "
            f"does not divide {hvd.size()}: change --grid or the number of ranks"
        )
    return int(hvd.size() // space)
