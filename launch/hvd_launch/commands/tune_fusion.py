"""`hvd-launch tune fusion`: from its arguments to its files."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from hvd_ext.cli import above_zero, at_least, progress
from hvd_ext.errors import UsageError
from hvd_ext.system.files import write_text
from hvd_ext.units import counted
from hvd_launch.settings import render
from hvd_launch.tune.common.journal import Journal
from hvd_launch.tune.common.target import check_results, check_unset, target_of
from hvd_launch.tune.fusion.rate import Reader

HELP = "Horovod's fusion threshold and cycle time"
EXAMPLE = "hvd-launch tune fusion -np 4 -o tuning -- python train.py --steps 50"
_DESCRIPTION = """Run COMMAND for short times with HOROVOD_FUSION_THRESHOLD and HOROVOD_CYCLE_TIME
at values that a model proposes; compare the best with Horovod's defaults and with its
HOROVOD_AUTOTUNE. In COMMAND, {run} becomes the number of the run, for programs that need a
new folder each time. After Ctrl-C the same command resumes."""
# Longer waits would overflow in system calls.
_MOST_SECONDS = 1_000_000
# The number of the model's first settings, which is the least that it needs.
_LEAST_TRIALS = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.usage = "hvd-launch tune fusion [-h] -np N [-H HOST:SLOTS,...] [-o DIR] ... -- COMMAND"
    parser.add_argument(
        "--rate",
        metavar="REGEX",
        help="regular expression whose first group is the throughput in COMMAND's output "
        "(default: a number before img/sec, images/s, samples/s, it/s and similar)",
    )
    parser.add_argument(
        "--seconds",
        type=above_zero,
        default=600.0,
        help="time after which to stop a run (default: 600)",
    )
    parser.add_argument(
        "--trials",
        type=at_least(_LEAST_TRIALS),
        default=8,
        help="number of settings to try (default: 8)",
    )
    parser.add_argument(
        "--pairs",
        type=at_least(2),
        default=5,
        help="runs each of the best settings, the defaults and autotune (default: 5)",
    )


def run(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Tune; returns 0, with or without a gain."""
    if not command:
        raise UsageError(
            "no COMMAND: write it after --, as in: hvd-launch tune fusion -np 2 -- python x.py"
        )
    if shutil.which(command[0]) is None:
        raise UsageError(f"{command[0]!r}: command not found; check its spelling, and PATH")
    if options.seconds > _MOST_SECONDS:
        raise UsageError(f"--seconds {options.seconds:g}: give at most {_MOST_SECONDS}")
    target = target_of(options)
    reader = Reader(options.rate)
    from rich.console import Console

    from hvd_launch.tune.fusion import report
    from hvd_launch.tune.fusion.model import AUTOTUNE, DEFAULT
    from hvd_launch.tune.fusion.runs import Runs, Search, subject

    check_unset(setting for point in (DEFAULT, AUTOTUNE) for setting in point.settings())
    search = Search(target, command, reader, options.seconds, options.trials, options.pairs)
    folder: Path = options.output
    settings, picture = folder / "fusion.sh", folder / "fusion.png"
    check_results(folder, ("fusion.json", settings.name, picture.name))
    journal = Journal(folder / "fusion.jsonl", subject(search), options.fresh)
    with progress("tune fusion") as advance:
        found = Runs(search, journal, advance).run()
    write_text(folder / "fusion.json", report.dump(found))
    if found.kept == DEFAULT:
        settings.unlink(missing_ok=True)
    else:
        gained = found.gains[found.kept]
        title = (
            f"measured for {counted(target.size, 'rank')}: {gained} times as fast as "
            "Horovod's defaults"
        )
        write_text(settings, render(found.kept.settings(), "sh", title) + "\n")
    if not report.draw(found, picture):
        print("no picture: pip install matplotlib", file=sys.stderr)
    if options.json:
        print(report.dump(found), end="")
    else:
        report.print_found(found, folder.resolve(), Console())
    return 0
