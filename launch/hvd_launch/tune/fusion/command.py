"""`hvd-launch tune fusion`: from its arguments to its files."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from rich.console import Console

from hvd_ext.errors import UsageError
from hvd_launch.settings import render
from hvd_launch.tune.common.files import write
from hvd_launch.tune.common.jobs import Target, check_unset
from hvd_launch.tune.common.journal import Journal
from hvd_launch.tune.common.progress import progress
from hvd_launch.tune.fusion import report as fusion_report
from hvd_launch.tune.fusion.model import AUTOTUNE, DEFAULT, DESIGN
from hvd_launch.tune.fusion.rate import Reader
from hvd_launch.tune.fusion.runs import Found, Runs, Search, subject

# Longer waits overflow in the system's calls.
_MOST_SECONDS = 1_000_000


def run(options: argparse.Namespace, command: tuple[str, ...], target: Target) -> int:
    """Tune; 0, whether anything was gained or not."""
    if not command:
        raise UsageError(
            "no COMMAND: write it after --, as in: hvd-launch tune fusion -np 2 -- python x.py"
        )
    if shutil.which(command[0]) is None:
        raise UsageError(f"{command[0]!r} is no command here: check its spelling, and PATH")
    if options.trials < len(DESIGN):
        raise UsageError(f"--trials {options.trials}: the model takes at least {len(DESIGN)}")
    if not 0 < options.seconds <= _MOST_SECONDS:
        raise UsageError(
            f"--seconds {options.seconds:g}: give a time above 0, at most {_MOST_SECONDS}"
        )
    check_unset(setting for point in (DEFAULT, AUTOTUNE) for setting in point.settings())
    reader = Reader(options.rate)
    search = Search(target, command, reader, options.seconds, options.trials, options.pairs)
    version = ".".join(map(str, target.backend.version))
    about = subject(search, f"{target.backend.name} {version}")
    folder: Path = options.output
    journal = Journal(folder / "fusion.jsonl", about, options.fresh)
    with progress("tune fusion") as advance:
        found = Runs(search, journal, advance).run()
    write(folder / "fusion.json", fusion_report.dump(found))
    settings = folder / "fusion.sh"
    if found.kept == DEFAULT:
        settings.unlink(missing_ok=True)
    else:
        gained = found.gains[found.kept]
        title = f"measured for {target.size} ranks: {gained} times as fast as Horovod's defaults"
        write(settings, render(found.kept.settings(), "sh", title) + "\n")
    picture = folder / "fusion.png"
    if not fusion_report.draw(found, picture):
        print("no picture: pip install matplotlib", file=sys.stderr)
    if options.json:
        print(fusion_report.dump(found), end="")
    else:
        _print(found, folder.resolve())
    return 0


def _print(found: Found, folder: Path) -> None:
    console = Console(width=max(Console().width, 100))
    fusion_report.print_found(found, console)
    if found.kept == DEFAULT:
        said = "Nothing beat Horovod's defaults beyond doubt: keep them, nothing was written."
    else:
        said = f"Wrote {folder / 'fusion.sh'}. Before a job:\n    . {folder / 'fusion.sh'}"
    console.print(said, markup=False, soft_wrap=True)
