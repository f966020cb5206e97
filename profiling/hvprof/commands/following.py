"""Readings of a running job, one after the other, and the arguments of commands that take them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from hvd_ext.cli import above_zero
from hvprof.commands.shared import add_running
from hvprof.live.snapshot import Snapshot, read_snapshot


def add_following(parser: argparse.ArgumentParser, *, every_s: float, longer_than_s: float) -> None:
    """Add the folder, how often it is read, and when a rank counts as blocked."""
    add_running(parser, longer_than_s=longer_than_s)
    parser.add_argument(
        "--every",
        type=above_zero,
        default=every_s,
        metavar="S",
        help=f"seconds between readings (default: {every_s:g})",
    )
    parser.add_argument("--once", action="store_true", help="end as soon as there is a result")


def readings(directory: Path, every_s: float) -> Iterator[Snapshot]:
    """Readings of a job, one each `every_s` seconds, from when its first rank has started MPI.

    Raises:
        UsageError: as `read_snapshot`.
    """
    waits = False
    while True:
        begin_s = time.monotonic()
        snapshot = read_snapshot(directory)
        if snapshot is not None:
            yield snapshot
        elif not waits:
            waits = True
            print(f"hvprof: no rank has started MPI in {directory} yet", file=sys.stderr)
        time.sleep(max(0.0, begin_s + every_s - time.monotonic()))
