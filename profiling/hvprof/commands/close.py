"""hvprof close: complete a recording that hvprof env began."""

from __future__ import annotations

import argparse
from pathlib import Path

from hvprof.recording.session import end, report_ranks

HELP = "complete a recording that hvprof env started"
ABOUT = "Write the job's duration and exit code, and print the number of recorded ranks."
EXAMPLE = "close runs/a --exit-code 0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", type=Path, help="folder of the recording")
    parser.add_argument(
        "--exit-code", type=int, default=0, metavar="CODE", help="exit code of the job (default: 0)"
    )


def run(options: argparse.Namespace) -> int:
    """Complete the recording, and say what was recorded."""
    command, strange = end(options.directory, options.exit_code)
    report_ranks(options.directory, command or ["the job"], options.exit_code, strange=strange)
    return 0
