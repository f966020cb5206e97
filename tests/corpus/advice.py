"""Tries what hvprof advises: a program before and after, its runs interleaved."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hvd_ext.arithmetic.statistics import Interval, gain
from hvprof.analysis.analysis import Analysis
from hvprof.recording.load import load
from hvprof.reporters.verdict import verdict
from tests.corpus.jobs import record, time_s
from tests.corpus.programs import Program


@dataclass(frozen=True)
class Tried:
    """What a program's advice brought.

    Attributes:
        program: its folder and name.
        advice: the advice that was tried.
        said: whether the verdict on a recording of the program has it.
        before_s, after_s: times of the program, and of the program as advised, in pairs.
    """

    program: str
    advice: str
    said: bool
    before_s: tuple[float, ...]
    after_s: tuple[float, ...]

    @property
    def speedup(self) -> Interval:
        """How many times as fast the program is as advised."""
        return gain(self.before_s, self.after_s)


def try_advice(program: Program, pairs: int, advance: Callable[[str], None]) -> Tried:
    """Record a program, then time it without and with its advice, alternately.

    Args:
        program: one that has advice.
        pairs: runs of each side.
        advance: called with what is run next.
    """
    advance(f"{program.name}: record")
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "run"
        record(program, directory)
        said = program.advice in verdict(Analysis(load(directory)))
    times: dict[bool, list[float]] = {False: [], True: []}
    for pair in range(pairs):
        advance(f"{program.name}: pair {pair + 1} of {pairs}")
        # Each side is first in every other pair.
        for advised in (False, True) if pair % 2 == 0 else (True, False):
            times[advised].append(time_s(program, advised=advised))
    return Tried(
        f"{program.folder}/{program.name}",
        program.advice,
        said,
        tuple(times[False]),
        tuple(times[True]),
    )


def print_tried(tried: Sequence[Tried], console: Console) -> None:
    """A row for each program: medians with their range, and the speedup with its interval."""
    table = Table(title="What the advice brings", title_justify="left")
    for name in ("program and advice", "before s", "after s", "times as fast"):
        table.add_column(name, justify="left" if name.startswith("program") else "right")
    for one in tried:
        said = "" if one.said else "NOT SAID: "
        found = one.speedup
        table.add_row(
            f"{one.program}\n  {said}{one.advice}",
            _times(one.before_s),
            _times(one.after_s),
            f"{found.estimate:.2f}\n{found.low:.2f} to {found.high:.2f}",
        )
    console.print(table)
    shorter = sum(one.speedup.gained for one in tried)
    console.print(
        f"{shorter} of {len(tried)} programs run shorter as advised. Times are the median and the "
        f"range of {len(tried[0].before_s)} runs, ratios have their 95 % interval.",
        highlight=False,
    )


def _times(times_s: Sequence[float]) -> str:
    return f"{statistics.median(times_s):.2f}\n{min(times_s):.2f} to {max(times_s):.2f}"
