"""What every benchmark does alike: its command line, its exit, and its JSON file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hvd_ext.cli import above_zero, at_least
from hvd_ext.errors import HvdExtError
from hvd_ext.files import make_folder, write_json
from testbed.timing import machine


class BenchmarkError(HvdExtError):
    """A benchmark could not be run to its end, or a result was wrong."""


def parser(name: str, doc: str | None, example: str, rounds: int) -> argparse.ArgumentParser:
    """A benchmark's command line, to which it adds its own flags.

    Has --rounds and --json, and --worker, which `testbed.ranks.launch` gives to the ranks.

    Args:
        name: of the module.
        doc: of the module; its first line is shown.
        example: flags worth trying.
        rounds: timed unless told otherwise.
    """
    made = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=(doc or "").partition("\n")[0],
        epilog=f"example: python -m benchmarks.{name} {example}",
    )
    made.add_argument("--rounds", type=at_least(1), default=rounds, help=f"timed ones ({rounds})")
    made.add_argument("--json", type=Path, metavar="F", help="write the result there")
    made.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return made


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """Add the flags of benchmarks on emulated hosts."""
    parser.add_argument("--hosts", type=at_least(2), default=2, help="emulated hosts (2)")
    parser.add_argument("--ranks-per-host", type=at_least(1), default=2, metavar="R", help="(2)")
    parser.add_argument("--gbit", type=above_zero, default=2.0, help="Gbit/s of a host's link (2)")


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write a benchmark's result as JSON, with the machine and the date."""
    make_folder(path.parent)
    write_json(path, {**result, "machine": machine()})
