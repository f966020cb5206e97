"""hvprof watch: what a running job does now, read from the files that its ranks map."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator

from rich.live import Live
from rich.text import Text

from hvd_ext.cli import at_least, exit_on_sigterm
from hvd_ext.errors import UsageError
from hvprof.commands.running.following import add_following, follow
from hvprof.commands.running.serving import LivePage, served
from hvprof.commands.shared import console
from hvprof.printable import printable
from hvprof.reporters.watch import Watched, as_json, render

_LAST_PORT = 65535
HELP = "show what a running job does now"
ABOUT = (
    "Show steps a second, the time in MPI and outside of it, bandwidths and the slowest rank of a "
    "job that hvprof records, between two readings of its files; the job does not notice. Ends "
    "when the job has ended. With --serve, the readings and the report are a page that stays until "
    "Ctrl-C."
)
EXAMPLE = "watch runs/a"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_following(parser, every_s=2.0, longer_than_s=5.0)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--json", action="store_true", help="print each reading as a line of JSON, with all ranks"
    )
    shown.add_argument(
        "--serve",
        type=at_least(0, _LAST_PORT),
        metavar="PORT",
        help="serve the readings and the report as a page that refreshes itself (0: any free port)",
    )
    parser.add_argument(
        "--address",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where --serve listens (default: 127.0.0.1, this host alone)",
    )


def run(options: argparse.Namespace) -> int:
    exit_on_sigterm()
    if options.serve is not None:
        return _serve(options)
    ended = ""
    with contextlib.suppress(KeyboardInterrupt), _output(as_data=options.json) as show:
        ended = _follow(options, show)
    if ended:
        # For people, because it belongs to no reading.
        print(ended, file=sys.stderr if options.json else sys.stdout)
    return 0


def _serve(options: argparse.Namespace) -> int:
    if options.once:
        raise UsageError("--serve shows a job until it has ended: leave --once out")
    page = LivePage(options.directory, options.every)
    with (
        contextlib.suppress(KeyboardInterrupt),
        served(page, options.address, options.serve) as url,
    ):
        print(
            f"hvprof: {url} shows {printable(str(options.directory))}; Ctrl-C ends it", flush=True
        )
        page.change(_follow(options, page.show))
        # People want to see the report of the job when it has ended.
        threading.Event().wait()
    return 0


def _follow(options: argparse.Namespace, show: Callable[[Watched], None]) -> str:
    folder, every_s = options.directory, options.every
    return follow(folder, every_s, options.longer_than, show, once=options.once)


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
