"""hvprof env: a folder to record into, and the variables that have a job's ranks record."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

from hvd_ext.cli import at_least
from hvprof.recording.session import begin, variables

HELP = "prepare a recording for a job that another program starts"
ABOUT = (
    "Make the folder of a recording and print the variables that every rank needs. When the "
    "job has ended, hvprof close completes the recording."
)
EXAMPLE = "env -o runs/a --json -- python train.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    add_output(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object, name to value")
    parser.add_argument("--dry-run", action="store_true", help="print them, make no folder")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="shown in reports"
    )


def run(options: argparse.Namespace) -> int:
    """Prepare the folder and print the variables."""
    if not options.dry_run:
        begin(options.output, after_dashes(options.command), force=options.force)
    found = variables(options.output, options.trace)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for name, value in found.items():
            print(f"export {name}={shlex.quote(value)}")
    return 0


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add what env and record share: where to, over what, and how much of a trace."""
    add_directory(parser)
    parser.add_argument(
        "--trace",
        type=at_least(1),
        default=0,
        metavar="N",
        help="keep each rank's last N calls one by one: tells waiting from transfer",
    )


def add_directory(parser: argparse.ArgumentParser) -> None:
    """Add where a recording goes, and whether over an earlier one."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=Path,
        required=True,
        help="a folder for the recording, which all nodes see",
    )
    parser.add_argument("--force", action="store_true", help="replace the recording in DIR")


def after_dashes(words: list[str]) -> list[str]:
    """What was given after "--"."""
    return words[1:] if words[:1] == ["--"] else words
