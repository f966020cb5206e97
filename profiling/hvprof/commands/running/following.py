"""Readings of a running job, one after the other, and the arguments of commands for them."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hvd_ext.cli import above_zero
from hvprof.commands.shared import add_running
from hvprof.live.diagnosis import diagnose
from hvprof.live.rates import rates
from hvprof.live.snapshot import Snapshot, read_snapshot
from hvprof.printable import printable
from hvprof.reporters.watch import Watched


def add_following(parser: argparse.ArgumentParser, *, every_s: float, longer_than_s: float) -> None:
    """Add options for the folder, the time between readings, and blocked ranks."""
    add_running(parser, longer_than_s=longer_than_s)
    parser.add_argument(
        "--every",
        type=above_zero,
        default=every_s,
        metavar="S",
        help=f"seconds between readings (default: {every_s:g})",
    )
    parser.add_argument("--once", action="store_true", help="end as soon as there is a result")


def readings(
    directory: Path, every_s: float, stopped: threading.Event | None = None
) -> Iterator[Snapshot]:
    """Yield readings of a job every `every_s` seconds, once its first rank has started MPI.

    Args:
        directory: folder of the recording.
        every_s: seconds between readings.
        stopped: ends the readings when it is set; without it, a line says that hvprof waits for the
            job.

    Raises:
        UsageError: as `read_snapshot`.
    """
    silent = stopped is not None
    stopped = stopped or threading.Event()
    while not stopped.is_set():
        begin_s = time.monotonic()
        snapshot = read_snapshot(directory)
        if snapshot is not None:
            yield snapshot
        elif not silent:
            silent = True
            print(f"hvprof: no rank has started MPI in {directory} yet", file=sys.stderr)
        stopped.wait(max(0.0, begin_s + every_s - time.monotonic()))


def follow(
    directory: Path,
    every_s: float,
    longer_than_s: float,
    show: Callable[[Watched], None],
    *,
    once: bool = False,
    stopped: threading.Event | None = None,
) -> str:
    """Show a job between each two readings, until it has ended; returns how it ended.

    Args:
        directory: folder of the recording, after which the job is named.
        every_s: seconds between readings.
        longer_than_s: seconds after which a rank counts as blocked in a call.
        show: called with each pair of readings.
        once: whether to end after the first pair.
        stopped: see `readings`.

    Raises:
        UsageError: as `read_snapshot`.
    """
    name = printable(str(directory))
    slowest = _Slowest()
    before: Snapshot | None = None
    for snapshot in readings(directory, every_s, stopped):
        if snapshot.ended:
            return f"{name}: {snapshot.ended}"
        if before is not None:
            found = rates(before, snapshot)
            show(
                Watched(
                    name=name,
                    unix_s=snapshot.unix_s,
                    size=len(snapshot.standings),
                    rates=found,
                    slowest_s=slowest.since_s(found.slowest, before.unix_s, snapshot.unix_s),
                    causes=diagnose(snapshot.standings, longer_than_s),
                )
            )
            if once:
                break
        before = snapshot
    return ""


class _Slowest:
    """Return since when the same rank has been the slowest."""

    def __init__(self) -> None:
        self._rank: int | None = None
        self._since_s = 0.0

    def since_s(self, rank: int | None, before_s: float, now_s: float) -> float:
        if rank != self._rank:
            self._rank, self._since_s = rank, before_s
        return now_s - self._since_s if rank is not None else 0.0
