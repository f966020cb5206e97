"""hvprof compare: the allreduce time of two sides by message size."""

from __future__ import annotations

import argparse

from hvprof.analysis.comparison import Comparison, compare
from hvprof.analysis.inputs import labels_of, load_side
from hvprof.commands.shared import SIDES, add_html, add_sides, console, print_json, write_page
from hvprof.printable import printable
from hvprof.reporters.comparison import comparison_page, render

HELP = "compare two sides"
ABOUT = f"Show the allreduce time of two sides by message size, with verdicts. A side is {SIDES}."
EXAMPLE = "compare runs/default runs/optimised"


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
    first, second = load_side(options.first), load_side(options.second)
    labels = options.labels or labels_of(options.first, options.second)
    return compare(first, second, labels=(printable(labels[0]), printable(labels[1])))
