"""hvprof project: the throughput of larger sizes."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from hvd_ext.cli import at_least
from hvd_ext.errors import UsageError
from hvprof.analysis.projection.points import Point, read_points, recorded_point
from hvprof.analysis.projection.projection import project
from hvprof.commands.shared import add_html, console, print_json, write_page
from hvprof.model import Recording
from hvprof.recording.load import load
from hvprof.reporters.projection import as_json, projection_page, render

HELP = "project throughput to more ranks"
ABOUT = (
    "Fit the throughput measured at three or more sizes, and project it to larger ones, with an "
    "interval and the size to measure next. The input is recordings, or a CSV file with the "
    "columns "
    "ranks and throughput."
)
EXAMPLE = "project runs/1 runs/2 runs/4 --to 16"
_STEPS, _BATCHES = "steps/s", "batches of a rank/s"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", metavar="RUN", type=Path, nargs="*", help="recordings of the same training"
    )
    parser.add_argument(
        "--csv",
        type=Path,
        metavar="FILE",
        help="file with the columns ranks,throughput, instead of recordings",
    )
    parser.add_argument(
        "--to",
        type=at_least(2),
        metavar="P",
        help="number of ranks (default: 4 times the largest measured)",
    )
    parser.add_argument(
        "--ranks-per-node",
        type=at_least(1),
        metavar="K",
        help="ranks on each node (default: as recorded, else 1)",
    )
    parser.add_argument(
        "--strong",
        action="store_true",
        help="strong scaling: the global batch was constant, not the batch of a rank",
    )
    parser.add_argument(
        "--far", action="store_true", help="allow more than 16 times the largest measured"
    )
    add_html(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    points, recorded, unit = _measured(options)
    found = project(
        points,
        to=options.to,
        ranks_per_node=options.ranks_per_node or recorded,
        strong=options.strong,
        far=options.far,
    )
    if options.html:
        write_page(options.html, projection_page(found, unit))
    if options.json:
        print_json(as_json(found, unit))
    elif not options.html:
        render(found, unit, console())
    return 0


def _measured(options: argparse.Namespace) -> tuple[tuple[Point, ...], int, str]:
    """The points, the ranks of a node, and what throughput counts."""
    if bool(options.runs) == bool(options.csv):
        raise UsageError("give either recordings or --csv FILE, with the columns ranks,throughput")
    if options.csv:
        return read_points(options.csv), 1, "throughput"
    recordings = [load(run) for run in options.runs]
    points = tuple(recorded_point(recording, strong=options.strong) for recording in recordings)
    unit = _STEPS if options.strong else _BATCHES
    return points, max(map(_most_on_a_node, recordings)), unit


def _most_on_a_node(recording: Recording) -> int:
    return max(Counter(rank.host for rank in recording.ranks).values())
