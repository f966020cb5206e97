"""hvprof limits: where scaling stops, and why."""

from __future__ import annotations

import argparse
from pathlib import Path

from hvd_ext.cli import above_zero, at_least
from hvd_ext.errors import UsageError
from hvprof.analysis.analysis import Analysis
from hvprof.analysis.limits.limits import (
    Limits,
    Question,
    limits_of_layers,
    limits_of_recording,
)
from hvprof.commands.shared import console, print_json
from hvprof.layers.table import load_layers
from hvprof.recording.load import load
from hvprof.reporters.formats.limits_json import as_json
from hvprof.reporters.terminal.limits import render

HELP = "find the number of ranks where scaling stops"
ABOUT = (
    "Show the number of ranks beyond which splitting the batch further does not pay, the "
    "limit "
    "that is reached first, and the step time on more ranks. The input is a recording, or "
    "layers and "
    "a link."
)
EXAMPLE = "limits layers.json --link 100 --batch 256"
_LEAST_GBIT, _MOST_GBIT = 1e-3, 1e6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="RUN", type=Path, help="recording, or output of hvprof layers --json"
    )
    parser.add_argument(
        "--layers", type=Path, metavar="FILE", help="layers of the recorded model, with --batch"
    )
    parser.add_argument(
        "--link", type=above_zero, metavar="GBIT", help="bandwidth of a node's link, in Gbit/s"
    )
    parser.add_argument(
        "--batch", type=at_least(1), metavar="TOTAL", help="samples in a step, over all ranks"
    )
    parser.add_argument(
        "--ranks-per-node",
        type=at_least(1),
        metavar="K",
        help="ranks on each node (default: as recorded, else 1)",
    )
    parser.add_argument(
        "--to", type=at_least(2), metavar="P", help="largest number of ranks in the table"
    )
    parser.add_argument(
        "--efficiency",
        type=above_zero,
        default=50.0,
        metavar="PERCENT",
        help="lowest acceptable efficiency, in percent (default: 50)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    found = _limits(options)
    if options.json:
        print_json(as_json(found))
    else:
        render(found, console())
    return 0


def _limits(options: argparse.Namespace) -> Limits:
    if options.link and not _LEAST_GBIT <= options.link <= _MOST_GBIT:
        raise UsageError(
            f"--link {options.link:g}: give Gbit/s from {_LEAST_GBIT:g} to {_MOST_GBIT:g}"
        )
    if not options.efficiency < 100:
        raise UsageError(f"--efficiency {options.efficiency:g}: give a percentage below 100")
    question = Question(
        link_gb_s=options.link / 8 if options.link else None,
        batch=options.batch,
        ranks_per_node=options.ranks_per_node,
        most_ranks=options.to,
        efficiency=options.efficiency / 100,
    )
    if options.source.is_file():
        if options.layers:
            raise UsageError(f"{options.source} is a table of layers: --layers needs a recording")
        return limits_of_layers(load_layers(options.source), question)
    analysis = Analysis(load(options.source))
    layers = load_layers(options.layers) if options.layers else None
    return limits_of_recording(
        analysis.recording, analysis.step_parts, analysis.exchanged_bytes, question, layers
    )
