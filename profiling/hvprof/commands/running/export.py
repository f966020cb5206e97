"""hvprof export: metrics of a running job, for a site's monitoring."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator

from hvd_ext.cli import exit_on_sigterm, output_file
from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.system.files import write_text
from hvprof.commands.running.following import add_following, readings
from hvprof.live.snapshot import Snapshot
from hvprof.printable import printable
from hvprof.recording.names import name_of
from hvprof.reporters.formats.opentelemetry import Collector
from hvprof.reporters.formats.prometheus import as_prometheus, check_installed

HELP = "give metrics of a running job to a site's monitoring"
ABOUT = (
    "Write steps, time in communication and blocked ranks of a job that hvprof records to a file"
    " in Prometheus' text format, or send them to an OpenTelemetry collector, again and again until"
    " the job has ended. The node exporter's textfile collector reads the file."
)
EXAMPLE = "export runs/a --prometheus /var/lib/node_exporter/hvprof.prom"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_following(parser, every_s=5.0, longer_than_s=30.0)
    parser.add_argument(
        "--prometheus",
        type=output_file,
        metavar="FILE",
        help="output file, replaced at every reading; the node exporter needs the suffix .prom",
    )
    parser.add_argument(
        "--otlp",
        metavar="URL",
        help="OpenTelemetry collector to send to, such as http://localhost:4318/v1/metrics",
    )


def run(options: argparse.Namespace) -> int:
    """Pass each reading to the requested outputs; the last one says that the job has ended."""
    exit_on_sigterm()
    try:
        with _outputs(options) as outputs:
            for number, reading in enumerate(readings(options.directory, options.every)):
                for give in outputs:
                    _give(give, reading, again=bool(number))
                if reading.ended:
                    print(f"{printable(str(options.directory))}: {reading.ended}", file=sys.stderr)
                if reading.ended or options.once:
                    break
    except KeyboardInterrupt:
        return 130
    return 0


def _give(give: Callable[[Snapshot], None], reading: Snapshot, *, again: bool) -> None:
    """Pass a reading on; if a later one fails, the next one is tried."""
    try:
        give(reading)
    except HvdExtError as error:
        if not again:
            raise
        print(f"hvprof: {error}; the next reading is tried", file=sys.stderr)


@contextlib.contextmanager
def _outputs(options: argparse.Namespace) -> Iterator[list[Callable[[Snapshot], None]]]:
    """Return functions that take the readings.

    Raises:
        UsageError: no output is requested, or a library is missing.
    """
    name, longer_than_s = name_of(options.directory), options.longer_than
    outputs: list[Callable[[Snapshot], None]] = []
    with contextlib.ExitStack() as collectors:
        if options.prometheus:
            check_installed()
            outputs.append(
                lambda reading: write_text(
                    options.prometheus, as_prometheus(reading, name, longer_than_s)
                )
            )
        if options.otlp:
            collector = Collector(options.otlp, name, longer_than_s)
            collectors.callback(collector.close)
            outputs.append(collector.send)
        if not outputs:
            raise UsageError("say where to: --prometheus FILE, --otlp URL, or both")
        yield outputs
