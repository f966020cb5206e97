"""The command line: hvprof record, report, compare."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from hvd_ext import errors
from hvprof import report
from hvprof.comparison import compare, render
from hvprof.record import record
from hvprof.recording import load


def entry() -> None:
    """The console script `hvprof`."""
    errors.run(main, "hvprof")


def main(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    options = _parser().parse_args(arguments)
    code: int = options.run(options)
    return code


def _record(options: argparse.Namespace) -> int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    return record(options.output, command, force=options.force)


def _report(options: argparse.Namespace) -> int:
    recording = load(options.directory)
    if options.json:
        _print_json(report.as_json(recording))
    else:
        report.render(recording, _console())
    return 0


def _compare(options: argparse.Namespace) -> int:
    sides = (load(options.first), load(options.second))
    comparison = compare(*sides, labels=options.labels and tuple(options.labels))
    if options.json:
        _print_json(comparison.as_json())
    else:
        render(comparison, _console())
    return 0


def _console() -> Console:
    # A line that the terminal wraps can be read; a figure that rich cut short cannot.
    return Console(width=max(Console().width, 120))


def _print_json(value: dict) -> None:
    json.dump(value, sys.stdout, indent=2, allow_nan=False)
    print()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hvprof",
        description="Record the communication of an MPI or Horovod job, and show it.",
        epilog="example: hvprof record -o runs/a -- horovodrun -np 2 python train.py",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    recorder = commands.add_parser(
        "record",
        help="run a command and record it",
        description="Run a command, unchanged, and record its MPI traffic.",
        epilog="example: hvprof record -o runs/a -- horovodrun -np 2 python train.py",
    )
    recorder.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=Path,
        required=True,
        help="a directory for the recording, which all nodes see",
    )
    recorder.add_argument("--force", action="store_true", help="replace the recording in DIR")
    recorder.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run"
    )
    recorder.set_defaults(run=_record)

    reporter = commands.add_parser(
        "report",
        help="show a recording",
        description="Show calls, times and bandwidths by operation and message size.",
        epilog="example: hvprof report runs/a --json > a.json",
    )
    reporter.add_argument("directory", metavar="DIR", type=Path)
    reporter.add_argument("--json", action="store_true", help="print all the data as JSON")
    reporter.set_defaults(run=_report)

    comparer = commands.add_parser(
        "compare",
        help="hold two recordings against each other",
        description="Show the allreduce time of two recordings by message size.",
        epilog="example: hvprof compare runs/default runs/optimised",
    )
    comparer.add_argument("first", metavar="A", type=Path, help="the default")
    comparer.add_argument("second", metavar="B", type=Path, help="the optimised")
    comparer.add_argument(
        "--labels", nargs=2, metavar=("A", "B"), help="names of the sides (default: directories)"
    )
    comparer.add_argument("--json", action="store_true", help="print the comparison as JSON")
    comparer.set_defaults(run=_compare)
    return parser
