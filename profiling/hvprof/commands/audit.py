"""hvprof audit: where two trainings part, or the ranks of one."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hvd_ext.audit import Audit, read_folder
from hvd_ext.errors import UsageError
from hvprof.analysis.audit import Outcome, between_ranks, between_runs
from hvprof.commands.shared import print_json
from hvprof.recording.session import AUDIT_NAME
from hvprof.reporters.audit import lines

HELP = "find the first step in which two trainings, or the ranks of one, differ"
ABOUT = (
    "Compare the fingerprints of two trainings, or of one training's ranks: name the first step "
    "and whether its input, gradient, sum or update differs first. Exit with code 1 if anything "
    "differs. A and B are recordings of `hvprof record --audit`, or folders that HVD_EXT_AUDIT "
    "named."
)
EXAMPLE = "audit runs/a runs/b"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="A", type=Path, help="a training")
    parser.add_argument(
        "second", metavar="B", type=Path, nargs="?", help="another one; without it, A's ranks"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    sides = [_read(path) for path in (options.first, options.second) if path is not None]
    outcomes = compared(sides)
    names = [str(path) for path in (options.first, options.second) if path is not None]
    if options.json:
        print_json(as_json(outcomes))
    else:
        print("\n".join(lines(names, outcomes)))
    return int(any(outcome.difference for outcome in outcomes.values()))


def compared(sides: Sequence[Mapping[int, Sequence[Audit]]]) -> dict[tuple[str, int], Outcome]:
    """Outcomes by what was compared ("A", "B" or "A and B") and by the optimizer's number.

    A run whose own ranks differ comes first: its differences to the other run follow from that.

    Raises:
        UsageError: there is nothing to compare.
    """
    found: dict[tuple[str, int], Outcome] = {}
    for label, side, other in zip("AB", sides, (*sides[1:], sides[0]), strict=False):
        for number, ranks in side.items():
            found[label, number] = between_ranks(ranks, other.get(number, ()) if sides[1:] else ())
    if len(sides) < 2:
        return found
    first, second = sides
    common = sorted(first.keys() & second.keys())
    for number in common:
        try:
            found["A and B", number] = between_runs(first[number], second[number])
        except ValueError as error:
            raise UsageError(f"optimizer {number} of A and B: {error}") from None
    return found


def as_json(outcomes: Mapping[tuple[str, int], Outcome]) -> dict[str, Any]:
    """The result in JSON's types."""
    return {
        "comparisons": [
            {
                "compared": what,
                "optimizer": number,
                "steps": outcome.steps,
                "kinds": list(outcome.compared),
                "difference": outcome.difference.as_json() if outcome.difference else None,
            }
            for (what, number), outcome in outcomes.items()
        ]
    }


def _read(path: Path) -> dict[int, list[Audit]]:
    inside = path / AUDIT_NAME
    return read_folder(inside if inside.is_dir() else path)
