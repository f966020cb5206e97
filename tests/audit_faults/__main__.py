"""Injects faults into trainings and prints whether an audit names them.

Each fault is in one training of a pair, and hvprof's audit of the two is to name its step, its
kind, the parameter and the ranks. Of the healthy pairs it is to name nothing. Ends with 1 if a
fault is named wrongly or a healthy pair gives an alarm.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hvd_ext.audit import read_folder
from hvd_ext.cli import output_file
from hvd_ext.system.process import run_to_end
from hvprof.analysis.audit import Difference, compared
from testbed import ranks
from tests.audit_faults.cases import CASES, Case, runs
from tests.audit_faults.truth import Expected, expected

_TIMEOUT_S, _WIDTH = 600, 190


@dataclass(frozen=True)
class Outcome:
    """What an audit said of one pair.

    Attributes:
        right: None where the fault changed no bit on this machine.
    """

    group: str
    name: str
    expected: Expected | None
    said: Expected | None
    right: bool | None


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.audit_faults", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="of names (default: all)")
    parser.add_argument("--json", type=output_file, metavar="F", help="write the outcomes there")
    parser.add_argument("--worker", metavar="DIR", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--np", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    chosen = tuple(
        case
        for case in CASES
        if not options.words or any(word in f"{case.group} {case.name}" for word in options.words)
    )
    if not chosen:
        parser.error(f"no such fault: {' '.join(options.words)}")
    if options.worker:
        from tests.audit_faults.worker import work

        work(options.worker, runs(chosen, options.np))
        return 0
    outcomes = outcomes_of(chosen, options.words)
    _print(outcomes)
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in outcomes], indent=1) + "\n")
    return int(any(one.right is False for one in outcomes))


def outcomes_of(cases: tuple[Case, ...], words: Sequence[str]) -> list[Outcome]:
    """Train all pairs, one job for each number of ranks, and compare their audits."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in sorted(
            {run.setup.ranks for case in cases for run in (case.first, case.second)}
        ):
            _launch(size, folder, words)
        return [outcome_of(case, folder) for case in cases]


def outcome_of(case: Case, folder: Path) -> Outcome:
    """Compare the audits of one pair."""
    first, second = (read_folder(folder / run.name) for run in (case.first, case.second))
    found = [one.difference for one in compared([first, second]).values() if one.difference]
    said = _said(min(found, key=lambda one: one.step)) if found else None
    wanted, has_effect = expected(case, folder)
    if not has_effect and said is None:
        return Outcome(case.group, case.name, None, None, None)
    return Outcome(case.group, case.name, wanted, said, _is_right(wanted, said))


def _said(found: Difference) -> Expected:
    return Expected(found.step, found.kind, found.parameter, found.ranks)


def _is_right(wanted: Expected | None, said: Expected | None) -> bool:
    if wanted is None or said is None:
        return wanted is said
    parameter = said.parameter if wanted.parameter is None else wanted.parameter
    return Expected(wanted.step, wanted.kind, parameter, wanted.ranks) == said


def _launch(size: int, folder: Path, words: Sequence[str]) -> None:
    command = [sys.executable, "-m", "tests.audit_faults", "--worker", str(folder)]
    command += ["--np", str(size), *words]
    variables = ranks.environment(ranks.sharing_cores(size))
    done = run_to_end([*ranks.hvd_launch(size), *command], variables, _TIMEOUT_S)
    if done.returncode:
        raise SystemExit(f"python -m tests.audit_faults: error: {ranks.last_lines(done.stdout)}")


def _print(outcomes: Sequence[Outcome]) -> None:
    table = Table(box=None)
    for column in ("", "class", "fault", "expected", "named"):
        table.add_column(column, no_wrap=column == "")
    for one in outcomes:
        mark = {True: "right", False: "WRONG", None: "same bits here"}[one.right]
        table.add_row(mark, one.group, one.name, _words(one.expected), _words(one.said))
    console = Console(width=max(_WIDTH, Console().width))
    console.print(table)
    injected = [one for one in outcomes if one.expected is not None]
    healthy = [one for one in outcomes if one.group == "healthy"]
    without = sum(one.right is None for one in outcomes)
    console.print(
        f"{sum(bool(one.right) for one in injected)} of {len(injected)} faults named rightly, "
        f"{sum(not one.right for one in healthy)} alarms in {len(healthy)} healthy pairs"
        + (f", {without} changed no bit here" if without else "")
    )


def _words(one: Expected | None) -> str:
    if one is None:
        return "nothing"
    of = f" of {one.parameter}" if one.parameter else ""
    return f"step {one.step}: {one.kind}{of}, ranks {', '.join(map(str, one.ranks))}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
