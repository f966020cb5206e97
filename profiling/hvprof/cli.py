"""The command line: hvprof record, import, report, compare, check, layers, env, close."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from hvd_ext import cli
from hvd_ext.errors import UsageError
from hvprof.analysis.advice import advise
from hvprof.analysis.comparison import Comparison, compare, render
from hvprof.analysis.inputs import labels_of, load_side
from hvprof.analysis.layers import LayerTable, load_layers, measure, parse_shape
from hvprof.analysis.regression import check, parse_percent
from hvprof.analysis.wait_split import split
from hvprof.analysis.wait_time import waiting
from hvprof.commands import close, env
from hvprof.commands.record import record
from hvprof.format.trace import write_chrome
from hvprof.importers.horovod_timeline import import_timeline
from hvprof.output import whole_file
from hvprof.recording.load import load
from hvprof.reporters import terminal
from hvprof.reporters.json_csv import as_json, write_csv
from hvprof.text import printable

_SIDES = (
    "a recording, a directory of recordings (several runs of the same thing), or a file "
    "written by hvprof report --html or --json"
)


def entry() -> None:
    """The console script `hvprof`."""
    cli.run(main, "hvprof")


def main(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    options = _parser().parse_args(arguments)
    code: int = options.run(options)
    return code


def _record(options: argparse.Namespace) -> int:
    return record(
        options.output,
        _after_dashes(options.command),
        force=options.force,
        trace_events=options.trace,
    )


def _import(options: argparse.Namespace) -> int:
    return import_timeline(options.timeline, options.output, force=options.force, size=options.size)


def _report(options: argparse.Namespace) -> int:
    recording = load(options.directory)
    layers = load_layers(options.layers) if options.layers else None
    parts = split(recording, waiting(recording))
    advices = advise(recording, parts)
    to_file = False
    if options.html:
        from hvprof.reporters.html import report_page

        page = report_page(recording, parts, advices, layers, options.peak)
        to_file = _write(options.html, page)
    if options.trace:
        count = write_chrome(recording, options.trace)
        print(f"hvprof: {count} events in {options.trace}: open it in Perfetto", file=sys.stderr)
        to_file = True
    if options.json:
        advised = [dataclasses.asdict(advice) for advice in advices]
        waits = dataclasses.asdict(parts) if parts else None
        _print_json({**as_json(recording), "wait": waits, "advice": advised})
    elif options.csv:
        write_csv(recording, sys.stdout)
    elif not to_file:
        terminal.render(recording, _console(), parts, advices)
    return 0


def _compare(options: argparse.Namespace) -> int:
    comparison = _compared(options)
    if options.html:
        from hvprof.reporters.html import comparison_page

        _write(options.html, comparison_page(comparison))
    if options.json:
        _print_json(comparison.as_json())
    elif not options.html:
        render(comparison, _console())
    return 0


def _check(options: argparse.Namespace) -> int:
    comparison = _compared(options)
    outcome = check(comparison, parse_percent(options.max_regression))
    with cli.ignore_broken_pipe():
        if options.json:
            _print_json(
                {
                    "exit_code": outcome.exit_code,
                    "reason": outcome.reason,
                    "comparison": comparison.as_json(),
                }
            )
        else:
            render(comparison, _console())
            _console().print(outcome.reason, markup=False, highlight=False)
    return outcome.exit_code


def _layers(options: argparse.Namespace) -> int:
    model, *settings = _after_dashes(options.command) or [""]
    if not model:
        raise UsageError("no model: give module:callable after --, such as resnet.model:resnet50")
    table = measure(
        model, settings, parse_shape(options.input), parse_shape(options.batch), options.repeats
    )
    if options.json:
        _print_json(table.as_json())
    else:
        _show_layers(table)
    return 0


def _show_layers(table: LayerTable) -> None:
    from hvprof.reporters.terminal_layers import render as render_layers

    render_layers(table, _console())


def _compared(options: argparse.Namespace) -> Comparison:
    first, second = load_side(options.first), load_side(options.second)
    labels = options.labels or labels_of(options.first, options.second)
    return compare(first, second, labels=(printable(labels[0]), printable(labels[1])))


def _after_dashes(words: list[str]) -> list[str]:
    return words[1:] if words[:1] == ["--"] else words


def _console() -> Console:
    return Console(width=max(Console().width, 120))


def _print_json(value: dict) -> None:
    json.dump(value, sys.stdout, indent=2, allow_nan=False)
    print()


def _write(path: Path, text: str) -> bool:
    with whole_file(path) as file:
        file.write(text)
    print(f"hvprof: {path} written, {len(text) / 1e6:.1f} MB", file=sys.stderr)
    return True


def _at_least_1(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _above_0(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hvprof",
        description="Record the communication of an MPI or Horovod job, and show it.",
        epilog="example: hvprof record -o runs/a -- horovodrun -np 2 python train.py",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(
        name: str,
        run: Callable[[argparse.Namespace], int],
        about: str,
        description: str,
        example: str,
    ) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = commands.add_parser(
            name, help=about, description=description, epilog=f"example: hvprof {example}"
        )
        made.set_defaults(run=run)
        return made

    _add_record(command)
    _add_import(command)
    _add_report(command)
    _add_compare(command)
    _add_layers(command)
    for module in (env, close):
        name = module.__name__.rpartition(".")[2]
        module.add_arguments(command(name, module.run, module.HELP, module.ABOUT, module.EXAMPLE))
    return parser


def _add_record(command: Callable[..., argparse.ArgumentParser]) -> None:
    parser = command(
        "record",
        _record,
        "run a command and record it",
        "Run a command, unchanged, and record its MPI traffic.",
        "record -o runs/a -- horovodrun -np 2 python train.py",
    )
    _add_output(parser)
    parser.add_argument(
        "--trace",
        type=_at_least_1,
        default=0,
        metavar="N",
        help="keep each rank's last N calls one by one: tells waiting from transfer",
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run"
    )


def _add_import(command: Callable[..., argparse.ArgumentParser]) -> None:
    parser = command(
        "import",
        _import,
        "make a recording of a Horovod timeline",
        "Rebuild the fused messages of a Horovod timeline (HOROVOD_TIMELINE) as a recording.",
        "import timeline.json -o runs/old",
    )
    parser.add_argument("timeline", metavar="TIMELINE", type=Path)
    _add_output(parser)
    parser.add_argument(
        "--size", type=_at_least_1, metavar="N", help="ranks of the job, if the timeline lacks them"
    )


def _add_report(command: Callable[..., argparse.ArgumentParser]) -> None:
    parser = command(
        "report",
        _report,
        "show a recording",
        "Show where the communication time went, who waited, and what to try next.",
        "report runs/a --html a.html",
    )
    parser.add_argument("directory", metavar="DIR", type=Path)
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one offline page")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write the trace for Perfetto (Chrome JSON)"
    )
    printed = parser.add_mutually_exclusive_group()
    printed.add_argument("--json", action="store_true", help="print all the data as JSON")
    printed.add_argument("--csv", action="store_true", help="print the rows as CSV")
    parser.add_argument(
        "--layers", type=Path, metavar="FILE", help="with what hvprof layers --json wrote"
    )
    parser.add_argument(
        "--peak",
        type=_above_0,
        metavar="GB/S",
        help="what the link can do, in 10^9 bytes/s: busbw is shown as a share of it",
    )


def _add_compare(command: Callable[..., argparse.ArgumentParser]) -> None:
    comparer = command(
        "compare",
        _compare,
        "hold two sides against each other",
        f"Show the allreduce time of two sides by message size, with verdicts. A side is {_SIDES}.",
        "compare runs/default runs/optimised",
    )
    comparer.add_argument("--html", type=Path, metavar="FILE", help="write one offline page")
    checker = command(
        "check",
        _check,
        "fail if a side has become slower",
        "End with code 1 if B's allreduce is slower than A's by more than the limit, and not by "
        f"chance. A side is {_SIDES}.",
        "check runs/main runs/branch --max-regression 5%",
    )
    checker.add_argument(
        "--max-regression", metavar="PERCENT", required=True, help="such as 5%%: of the total"
    )
    for parser in (comparer, checker):
        parser.add_argument("first", metavar="A", type=Path, help="the default")
        parser.add_argument("second", metavar="B", type=Path, help="what is to be better")
        parser.add_argument(
            "--labels", nargs=2, metavar=("A", "B"), help="names of the sides (default: paths)"
        )
        parser.add_argument("--json", action="store_true", help="print it as JSON")


def _add_layers(command: Callable[..., argparse.ArgumentParser]) -> None:
    parser = command(
        "layers",
        _layers,
        "time a model layer by layer",
        "Time forward and backward of each layer at several batches, and when each gradient is "
        "ready. MODEL is module:callable, its arguments name=value.",
        "layers --input 3,224,224 --batch 1,4,16 -- resnet.model:resnet50 classes=10",
    )
    parser.add_argument(
        "--input", required=True, metavar="SHAPE", help="of one sample, such as 3,224,224"
    )
    parser.add_argument("--batch", default="1,4,16", help="batches of a rank (default: 1,4,16)")
    parser.add_argument(
        "--repeats", type=_at_least_1, default=5, metavar="N", help="of each batch (default: 5)"
    )
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- MODEL [NAME=VALUE ...]")


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=Path,
        required=True,
        help="a directory for the recording, which all nodes see",
    )
    parser.add_argument("--force", action="store_true", help="replace the recording in DIR")
