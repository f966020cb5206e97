"""hvprof watch: what a running job does now, read from the files that its ranks map."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator

from rich.live import Live
from rich.text import Text

from hvd_ext.cli import exit_on_sigterm
from hvprof.commands.following import add_following, readings
from hvprof.commands.shared import console
from hvprof.live.diagnosis import diagnose
from hvprof.live.rates import rates
from hvprof.live.snapshot import Snapshot
from hvprof.printable import printable
from hvprof.reporters.watch import Watched, as_json, render

HELP = "show what a running job does now"
ABOUT = (
    "Show steps a second, the time in MPI and outside of it, bandwidths and the slowest rank of a "
    "job that hvprof records, between two readings of its files; the job does not notice. Ends "
    "when the job has ended."
)
EXAMPLE = "watch runs/a"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_following(parser, every_s=2.0, longer_than_s=5.0)
    parser.add_argument(
        "--json", action="store_true", help="print each reading as a line of JSON, with all ranks"
    )


def run(options: argparse.Namespace) -> int:
    exit_on_sigterm()
    ended = ""
    with contextlib.suppress(KeyboardInterrupt), _output(as_data=options.json) as show:
        ended = _watch(options, show)
    if ended:
        # For people: it belongs to no reading.
        print(ended, file=sys.stderr if options.json else sys.stdout)
    return 0


def _watch(options: argparse.Namespace, show: Callable[[Watched], None]) -> str:
    """Show readings until the job has ended; returns how it did."""
    name = printable(str(options.directory))
    slowest = _Slowest()
    before: Snapshot | None = None
    for snapshot in readings(options.directory, options.every):
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
                    causes=diagnose(snapshot.standings, options.longer_than),
                )
            )
            if options.once:
                break
        before = snapshot
    return ""


class _Slowest:
    """Since when the same rank has been the slowest."""

    def __init__(self) -> None:
        self._rank: int | None = None
        self._since_s = 0.0

    def since_s(self, rank: int | None, before_s: float, now_s: float) -> float:
        if rank != self._rank:
            self._rank, self._since_s = rank, before_s
        return now_s - self._since_s if rank is not None else 0.0


@contextlib.contextmanager
def _output(*, as_data: bool) -> Iterator[Callable[[Watched], None]]:
    if as_data:
        yield lambda watched: print(json.dumps(as_json(watched), allow_nan=False), flush=True)
    elif sys.stdout.isatty():
        # The last reading stays on the screen.
        with Live(console=console(), auto_refresh=False, redirect_stdout=False) as screen:
            yield lambda watched: screen.update(Text(render(watched)), refresh=True)
    else:
        yield lambda watched: print(render(watched), flush=True)
