"""hvprof env: a folder to record into, and the variables that make a job's ranks record."""

from __future__ import annotations

import argparse
import json
import shlex

from hvprof.commands.shared import add_output, after_dashes
from hvprof.recording.session import begin, variables

HELP = "prepare a recording for a job that another program starts"
ABOUT = (
    "Make the folder of a recording and print the variables that every rank needs. After the job, "
    "hvprof close completes the recording."
)
EXAMPLE = "env -o runs/a --json -- python train.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_output(parser)
    parser.add_argument(
        "--json", action="store_true", help="print a JSON object of names and values"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the variables, make no folder"
    )
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help="command of the job, for reports",
    )


def run(options: argparse.Namespace) -> int:
    if not options.dry_run:
        begin(options.output, after_dashes(options.command), force=options.force)
    found = variables(options.output, options.trace, audit=options.audit, steps=options.gpu)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for name, value in found.items():
            print(f"export {name}={shlex.quote(value)}")
    return 0
