"""hvprof import: a recording made from a Horovod timeline."""

from __future__ import annotations

import argparse
from pathlib import Path

from hvd_ext.cli import at_least
from hvprof.commands.shared import add_directory
from hvprof.importers.horovod_timeline import import_timeline

HELP = "convert a Horovod timeline to a recording"
ABOUT = "Rebuild the fused messages of a Horovod timeline (HOROVOD_TIMELINE) as a recording."
EXAMPLE = "import timeline.json -o runs/old"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "timeline", metavar="TIMELINE", type=Path, help="file that HOROVOD_TIMELINE named"
    )
    add_directory(parser)
    parser.add_argument(
        "--size", type=at_least(1), metavar="N", help="number of ranks, if the timeline lacks it"
    )


def run(options: argparse.Namespace) -> int:
    return import_timeline(options.timeline, options.output, force=options.force, size=options.size)
