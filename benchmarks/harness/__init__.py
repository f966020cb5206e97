"""Shared parts of benchmarks: command line, exit code, table and JSON file."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hvd_ext import cli
from hvd_ext.cli import above_zero, at_least, output_file
from hvd_ext.errors import HvdExtError
from hvd_ext.system.files import write_json
from testbed.timing import machine

_WORKER = "--worker"
# Columns of a file or pipe: none of the headings is cut. COLUMNS sets another number.
_WIDE = 160


class BenchmarkError(HvdExtError):
    """A benchmark could not be run to its end, or a result was wrong."""


def parser(
    name: str, doc: str | None, example: str, rounds: int | None = None
) -> argparse.ArgumentParser:
    """A benchmark's command line, to which it adds its own flags.

    Has --json, and --worker, which `testbed.ranks.launch` gives to the ranks.

    Args:
        name: of the module.
        doc: of the module; its first line is shown.
        example: flags worth trying.
        rounds: if given, the default of --rounds.
    """
    made = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=(doc or "").partition("\n")[0],
        epilog=f"example: python -m benchmarks.{name} {example}",
    )
    if rounds:
        made.add_argument("--rounds", type=at_least(1), default=rounds, help=f"timed ({rounds})")
    made.add_argument("--json", type=output_file, metavar="F", help="write the result there")
    made.add_argument(_WORKER, action="store_true", help=argparse.SUPPRESS)
    return made


def add_hosts(parser: argparse.ArgumentParser, least: int = 2) -> None:
    """Add --hosts (`least` or more), --ranks-per-host and --gbit."""
    parser.add_argument("--hosts", type=at_least(least), default=2, help="emulated hosts (2)")
    parser.add_argument("--ranks-per-host", type=at_least(1), default=2, metavar="R", help="(2)")
    parser.add_argument("--gbit", type=above_zero, default=2.0, help="Gbit/s of a host's link (2)")


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: int = 1,
    width: int | None = None,
) -> Console:
    """Print a table; returns the console, for what follows it.

    Args:
        title: above it.
        columns: headings.
        rows: cells of each; one without cells draws a line.
        left: so many columns are flush left, the others right.
        width: of the console, in characters; by default the terminal's, or 160 without one.
    """
    table = Table(title=title)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right")
    for cells in rows:
        if cells:
            table.add_row(*cells)
        else:
            table.add_section()
    console = Console(width=width)
    if width is None and not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDE
    console.print(table)
    return console


def times(found: Mapping[str, float], digits: int) -> tuple[str, str]:
    """Two cells of `testbed.timing.summary`: the median, and the middle half."""
    median, low, high = (f"{found[name]:.{digits}f}" for name in ("median", "low", "high"))
    return median, f"{low} to {high}"


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write a benchmark's result as JSON, with the machine, the date and the command."""
    write_json(path, {**result, "machine": machine(), "command": _command()})


def _command() -> str:
    """This process's command; without what names files and folders of this machine."""
    kept = sys.orig_argv[1:]
    if "--ucc" in kept:
        kept[kept.index("--ucc") + 1] = "PREFIX"
    for flag in ("--json", "--plot"):
        while flag in kept:
            del kept[kept.index(flag) : kept.index(flag) + 2]
    return shlex.join(["python", *kept])


def run(main: Callable[[Sequence[str]], int], name: str) -> None:
    """Run a benchmark as the process's only work; its job ends with it, however it ends."""
    if _WORKER not in sys.argv:  # ranks end at once
        cli.exit_on_sigterm()
    cli.run(main, name)
