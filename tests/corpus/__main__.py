"""Records each program of the corpus and prints whether the verdict names its cause.

Its emulated hosts need root. Ends with 1 if fewer than 11 in 12 are named, or anybody is wrongly
blamed. With --advice, it tries what the verdict advises instead, and ends with 1 if the verdict
says something else, or if fewer than 8 programs (or all that are named) run shorter.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from hvd_ext import cli
from hvd_ext.cli import at_least, output_file
from hvd_ext.errors import UsageError
from hvd_ext.system.files import write_json
from hvprof.analysis.analysis import Analysis
from hvprof.recording.load import load
from hvprof.reporters.verdict import verdict
from testbed.timing import machine
from tests.corpus.advice import print_tried, try_advice
from tests.corpus.jobs import record
from tests.corpus.programs import PROGRAMS, Program

_NAME = "python -m tests.corpus"
_LEAST_RIGHT, _LEAST_SHORTER = 11 / 12, 8


@dataclass(frozen=True)
class Outcome:
    """What the verdict said of one program."""

    program: str
    expected: str
    said: str
    right: bool
    wrongly_blamed: list[int]
    sentence: str


def main(arguments: Sequence[str]) -> int:
    """Check the verdicts, or try their advice."""
    parser = argparse.ArgumentParser(prog=_NAME, description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs (default: all)")
    parser.add_argument(
        "--advice", action="store_true", help="time the programs before and after their advice"
    )
    parser.add_argument(
        "--pairs",
        type=at_least(3),
        default=5,
        help="with --advice, runs before and as many after (default: 5)",
    )
    parser.add_argument("--json", type=output_file, metavar="F", help="write the outcomes there")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - {one.name for one in PROGRAMS}
    if unknown:
        raise UsageError(f"no such program: {' '.join(sorted(unknown))}")
    chosen = [one for one in PROGRAMS if not options.names or one.name in options.names]
    if options.advice:
        return _try(chosen, options.pairs, options.json)
    return _check(chosen, options.json)


def outcome_of(program: Program) -> Outcome:
    """Record a program and compare the verdict with its cause."""
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder) / "run"
        record(program, recording)
        analysis = Analysis(load(recording))
    cause = analysis.cause
    kind = cause.kind.value if cause else "background"
    ranks = set(cause.ranks if cause else ())
    return Outcome(
        program=f"{program.folder}/{program.name}",
        expected=" or ".join(program.kinds),
        said=kind,
        right=kind in program.kinds and ranks == set(program.blamed),
        wrongly_blamed=sorted(ranks - set(program.blamed)),
        sentence=verdict(analysis).partition(". ")[0] + ".",
    )


def _check(programs: Sequence[Program], output: Path | None) -> int:
    outcomes = []
    for program in programs:
        outcomes.append(outcome_of(program))
        _print(outcomes[-1])
    right = sum(one.right for one in outcomes)
    blamed = sum(bool(one.wrongly_blamed) for one in outcomes)
    print(f"{right} of {len(outcomes)} named, {blamed} blame a rank wrongly")
    if output:
        write_json(output, [asdict(one) for one in outcomes])
    return 0 if right >= _LEAST_RIGHT * len(outcomes) and not blamed else 1


def _try(programs: Sequence[Program], pairs: int, output: Path | None) -> int:
    advised = [one for one in programs if one.advice]
    if not advised:
        raise UsageError("these programs have no advice to try")
    console = Console(stderr=True)
    tried = [
        try_advice(one, pairs, lambda text: console.print(text, style="dim")) for one in advised
    ]
    print_tried(tried, Console())
    if output:
        programs_tried = [{**asdict(one), "times_as_fast": asdict(one.speedup)} for one in tried]
        command = f"{_NAME} --advice --pairs {pairs}"
        found = {"pairs": pairs, "programs": programs_tried}
        write_json(output, {**found, "machine": machine(), "command": command})
    shorter = sum(one.speedup.gained for one in tried)
    said = all(one.said for one in tried)
    return 0 if said and shorter >= min(_LEAST_SHORTER, len(tried)) else 1


def _print(outcome: Outcome) -> None:
    mark = "right" if outcome.right else "WRONG"
    blamed = f", wrongly blamed: {outcome.wrongly_blamed}" if outcome.wrongly_blamed else ""
    print(f"{mark}  {outcome.program}: expected {outcome.expected}, said {outcome.said}{blamed}")
    print(f"       {outcome.sentence}", flush=True)


if __name__ == "__main__":
    cli.exit_on_sigterm()
    cli.run(main, _NAME)
