"""hvprof report: one recording on the terminal, as a page, as data, or as a trace."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path

from hvd_ext.cli import above_zero, output_file
from hvd_ext.errors import UsageError
from hvprof.analysis.analysis import Analysis
from hvprof.analysis.audit import Outcome, compared
from hvprof.commands.shared import add_html, console, print_json, write_page
from hvprof.layers.table import load_layers
from hvprof.recording.audits import has_audit, read_audits
from hvprof.recording.load import load
from hvprof.reporters.formats.json_csv import as_json, write_csv
from hvprof.reporters.formats.perfetto import write_chrome
from hvprof.reporters.page.html import report_page
from hvprof.reporters.page.sections.base import Page
from hvprof.reporters.terminal import terminal
from hvprof.reporters.verdict import verdict

HELP = "show a recording"
ABOUT = "Show the time in communication, the ranks that others wait for, and settings to try."
EXAMPLE = "report runs/a --html a.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", type=Path, help="folder of the recording")
    add_html(parser)
    parser.add_argument(
        "--trace", type=output_file, metavar="FILE", help="write the trace for Perfetto"
    )
    printed = parser.add_mutually_exclusive_group()
    printed.add_argument("--json", action="store_true", help="print all the data as JSON")
    printed.add_argument("--csv", action="store_true", help="print the rows as CSV")
    parser.add_argument(
        "--layers", type=Path, metavar="FILE", help="output of hvprof layers --json, to include"
    )
    parser.add_argument(
        "--peak",
        type=above_zero,
        metavar="GB/S",
        help="peak bandwidth of the link, in 10^9 bytes/s; busbw is shown as a share of it",
    )


def run(options: argparse.Namespace) -> int:
    analysis = Analysis(load(options.directory))
    layers = load_layers(options.layers) if options.layers else None
    if options.html:
        audit = _audit_of(options.directory)
        write_page(options.html, report_page(Page(analysis, layers, options.peak, audit)))
    if options.trace:
        count = write_chrome(analysis.recording, options.trace)
        print(f"hvprof: {count} events in {options.trace}: open it in Perfetto", file=sys.stderr)
    if options.json:
        advice = [dataclasses.asdict(one) for one in analysis.advice]
        wait = dataclasses.asdict(analysis.wait_split) if analysis.wait_split else None
        cause = dataclasses.asdict(analysis.cause) if analysis.cause else None
        said = {"verdict": verdict(analysis), "cause": cause, "wait": wait, "advice": advice}
        print_json({**as_json(analysis), **said})
    elif options.csv:
        write_csv(analysis, sys.stdout)
    elif not (options.html or options.trace):
        terminal.render(analysis, console())
    return 0


def _audit_of(directory: Path) -> Mapping[tuple[str, int], Outcome] | str | None:
    """Return the outcome of an audit, or why a rank's cannot be read; None without one."""
    if not has_audit(directory):
        return None
    try:
        return compared([read_audits(directory)])
    except UsageError as error:
        return str(error)
