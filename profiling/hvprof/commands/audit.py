"""hvprof audit: the first difference between two trainings, or between the ranks of one."""

from __future__ import annotations

import argparse
from pathlib import Path

from hvprof.analysis.audit import compared
from hvprof.commands.shared import console, print_json, print_lines
from hvprof.recording.audits import read_audits
from hvprof.reporters.audit import as_json, lines

HELP = "find the first step in which two trainings, or the ranks of one, differ"
ABOUT = (
    "Compare the fingerprints of two trainings, or of one training's ranks: name the first step "
    "and whether its input, gradient, sum or update differs first. Exit with code 1 if anything "
    "differs. A and B are recordings of `hvprof record --audit`, or folders that HVD_EXT_AUDIT "
    "named."
)
EXAMPLE = "audit runs/a runs/b"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="A", type=Path, help="a training")
    parser.add_argument(
        "second",
        metavar="B",
        type=Path,
        nargs="?",
        help="second training to compare with; if omitted, the ranks of A are compared",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    sides = [read_audits(path) for path in (options.first, options.second) if path is not None]
    outcomes = compared(sides)
    names = [str(path) for path in (options.first, options.second) if path is not None]
    if options.json:
        print_json(as_json(outcomes))
    else:
        print_lines(lines(names, outcomes), console())
    return int(any(outcome.difference for outcome in outcomes.values()))
