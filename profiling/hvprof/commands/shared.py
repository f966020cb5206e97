"""Arguments and output that the subcommands share."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from hvd_ext.cli import above_zero, at_least, not_negative, output_file
from hvd_ext.system.files import write_text
from hvd_ext.variables import HVPROF_GPU, SKIPPED_STEPS
from hvprof.analysis.comparison.bootstrap import CONFIDENCE

SIDES = (
    "a recording, a folder of recordings (several runs of one configuration), or a file written by "
    "hvprof report --html or --json"
)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options that env and record share: the folder, --force, and the trace."""
    add_directory(parser)
    parser.add_argument(
        "--trace",
        type=at_least(1),
        default=0,
        metavar="N",
        help="calls to keep one by one on each rank, 64 bytes each; they separate waiting from "
        "transfer (default: 0)",
    )
    parser.add_argument(
        "--gpu",
        type=_steps,
        metavar="STEPS",
        help="training steps that torch.profiler records on each rank: a number of steps after the "
        f"first {SKIPPED_STEPS}, or the first and the last step, such as 20-22 (default: none)",
    )
    parser.add_argument(
        "--audit",
        action="store_true",
        help="have hvd_ext's optimizers write fingerprints of what they train with, for hvprof "
        "audit",
    )


def _steps(text: str) -> tuple[int, int] | None:
    try:
        return HVPROF_GPU.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=Path,
        required=True,
        help="folder for the recording, on storage that all nodes share",
    )
    parser.add_argument("--force", action="store_true", help="replace the recording in DIR")


def add_running(parser: argparse.ArgumentParser, *, longer_than_s: float) -> None:
    """Add options for the folder of a running job, and for blocked ranks."""
    parser.add_argument("directory", metavar="DIR", type=Path, help="folder of the recording")
    parser.add_argument(
        "--longer-than",
        type=not_negative,
        default=longer_than_s,
        metavar="S",
        help=f"seconds after which a rank counts as blocked in a call (default: {longer_than_s:g})",
    )


def after_dashes(words: list[str]) -> list[str]:
    """The words after "--"."""
    return words[1:] if words[:1] == ["--"] else words


def add_sides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="A", type=Path, help="baseline")
    parser.add_argument("second", metavar="B", type=Path, help="side to compare with it")
    parser.add_argument(
        "--labels", nargs=2, metavar=("A", "B"), help="names of the sides (default: their paths)"
    )
    parser.add_argument(
        "--confidence",
        type=above_zero,
        default=100 * CONFIDENCE,
        metavar="PERCENT",
        help=f"confidence of the intervals, in percent (default: {100 * CONFIDENCE:g})",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def add_html(parser: argparse.ArgumentParser) -> None:
    """Add an option for the page's file, which is checked before the work."""
    parser.add_argument(
        "--html", type=output_file, metavar="FILE", help="write a self-contained page"
    )


# Reports are at least this wide.
LEAST_COLUMNS = 80


def console() -> Console:
    """Return standard output with its own width, at least 80 columns."""
    return Console(width=max(Console().width, LEAST_COLUMNS))


def print_lines(lines: Iterable[str], shown: Console) -> None:
    """Print sentences: wrapped on a terminal, otherwise each on one line."""
    for line in lines:
        text = line
        if shown.is_terminal:
            indent = " " * (len(line) - len(line.lstrip()) + 2)
            text = textwrap.fill(
                line, shown.width, subsequent_indent=indent, break_long_words=False
            )
        shown.print(text, markup=False, highlight=False, soft_wrap=True)


def print_json(value: dict[str, Any]) -> None:
    json.dump(value, sys.stdout, indent=2, allow_nan=False)
    print()


def write_page(path: Path, text: str) -> None:
    """Write a page, and say so on standard error."""
    write_text(path, text)
    print(f"hvprof: {path} written, {len(text) / 1e6:.1f} MB", file=sys.stderr)
