"""hvprof compare: the step or the run of two sides, their communication, and a verdict."""

from __future__ import annotations

import argparse

from hvd_ext.errors import UsageError
from hvprof.analysis.comparison.comparison import Comparison, compare
from hvprof.analysis.comparison.inputs import load_side
from hvprof.commands.shared import SIDES, add_html, add_sides, console, print_json, write_page
from hvprof.printable import printable
from hvprof.recording.names import names_of
from hvprof.reporters.comparison import comparison_page, render

HELP = "compare two sides"
ABOUT = (
    "Show whether B is faster than A: the step (or the run), its exposed communication, and each "
    f"operation, with intervals and verdicts. A side is {SIDES}."
)
EXAMPLE = "compare runs/default runs/optimized"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_html(parser)
    add_sides(parser)


def run(options: argparse.Namespace) -> int:
    comparison = compared(options)
    if options.html:
        write_page(options.html, comparison_page(comparison))
    if options.json:
        print_json(comparison.as_json())
    elif not options.html:
        render(comparison, console())
    return 0


def compared(options: argparse.Namespace) -> Comparison:
    if not options.confidence < 100:
        raise UsageError(f"--confidence {options.confidence:g}: give a percentage below 100")
    first, second = load_side(options.first), load_side(options.second)
    labels = options.labels or names_of(options.first, options.second)
    return compare(
        first,
        second,
        labels=(printable(labels[0]), printable(labels[1])),
        confidence=options.confidence / 100,
    )
