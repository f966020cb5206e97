"""hvprof check: a gate for continuous integration."""

from __future__ import annotations

import argparse

from hvd_ext.cli import ignore_broken_pipe
from hvprof.analysis.comparison.regression import check, parse_percent
from hvprof.commands.compare import compared
from hvprof.commands.shared import SIDES, add_sides, console, print_json
from hvprof.reporters.comparison import render

HELP = "fail if one side is slower than the other"
ABOUT = (
    "Exit with code 1 if B's allreduce is significantly slower than A's, by more than the limit. "
    f"A side is {SIDES}."
)
EXAMPLE = "check runs/main runs/branch --max-regression 5%"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-regression",
        metavar="PERCENT",
        required=True,
        help="maximum slowdown of the total, in percent, as in 5%%",
    )
    add_sides(parser)


def run(options: argparse.Namespace) -> int:
    """Compare two sides, and end with the gate's code."""
    comparison = compared(options)
    outcome = check(comparison, parse_percent(options.max_regression))
    with ignore_broken_pipe():
        if options.json:
            found = {"exit_code": outcome.exit_code, "reason": outcome.reason}
            print_json({**found, "comparison": comparison.as_json()})
        else:
            render(comparison, console())
            console().print(outcome.reason, markup=False, highlight=False)
    return outcome.exit_code
