"""Two sides compared: first the step or the run, then exposed communication, then operations.

The rows of the allreduce are the table of Anthony et al. for EDSR on Horovod: message size, time
with the default, time optimized, improvement; here with an interval and a verdict for each row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hvd_ext.units import format_seconds
from hvprof.analysis.comparison.bootstrap import CONFIDENCE, LEAST_PAIRS, NO_EVIDENCE, Method
from hvprof.analysis.comparison.compared import (
    ComparedRow,
    Measured,
    Sides,
    of_operation,
    of_run,
    of_steps,
)
from hvprof.analysis.comparison.inputs import RecordedRun, run_of
from hvprof.analysis.contention import StepParts, mean_parts
from hvprof.analysis.summary import SIZE_ROWS
from hvprof.model import Recording
from hvprof.recording.names import names_of

COMPARISON_VERSION = 3
ALLREDUCE = "allreduce"

# If the bytes of the sides differ by more than this, their times are not comparable.
_BYTES_TOLERANCE = 0.01
# Horovod fuses a little differently in every run. If the shares of a row in the sides' bytes differ
# by more than this, its messages are different ones.
_CUT_TOLERANCE = 1.25
CUT_DIFFERENTLY = "cut differently"
# Operations with less of a side's time in communication are left out.
_LEAST_SHARE = 0.01
# An interval whose ends differ by more than this is not informative.
_WIDEST = 100


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sides, from what users feel to single operations.

    Attributes:
        labels: names of the sides.
        runs: number of runs of each side.
        pairs: number of pairs that were recorded alternately; 0 if they were not, or are too few.
        confidence: confidence of the intervals of `lead`, `exposed` and `total`; those of `rows`
            and `operations` hold jointly.
        lead: the step, without warm-up, or the run if a run of either side marks no steps; None if
            neither is known.
        exposed: exposed communication in a step.
        rows, total: the allreduce by message size, and all of it.
        operations: other operations of both sides, the longest first.
        same_bytes: False if the bytes that the sides moved differ by more than 1 %.
        same_ranks: False if the sides had different numbers of ranks.
        step_parts: parts of a step on each side, a mean over its runs; None if a run of either
            side marks no steps.
    """

    labels: tuple[str, str]
    runs: tuple[int, int]
    pairs: int
    confidence: float
    lead: ComparedRow | None
    exposed: ComparedRow | None
    rows: tuple[ComparedRow, ...]
    total: ComparedRow
    operations: tuple[ComparedRow, ...]
    same_bytes: bool
    same_ranks: bool
    step_parts: tuple[StepParts, StepParts] | None = None

    @property
    def shown(self) -> tuple[ComparedRow, ...]:
        """Return all rows with a verdict, in their order."""
        first = (self.lead, self.exposed, self.total, *self.rows, *self.operations)
        return tuple(row for row in first if row and row.improvement_percent is not None)

    @property
    def cut_differently(self) -> tuple[str, ...]:
        """Return the sizes without a counterpart, if the sides cut gradients differently."""
        return tuple(row.name for row in self.rows if row.improvement_percent is None)

    @property
    def headline(self) -> ComparedRow:
        """Return the row of the verdict."""
        return self.lead or self.total

    @property
    def verdict(self) -> str:
        """Describe the comparison in a sentence or two."""
        return " ".join(_sentences(self))

    def as_json(self) -> dict[str, Any]:
        """Return the comparison in JSON's types; the keys are the attributes' names."""
        row = self.headline
        return {
            "comparison_version": COMPARISON_VERSION,
            "verdict": self.verdict,
            "outcome": row.verdict,
            "speedup": row.speedup,
            "speedup_interval": row.speedup_interval,
            **dataclasses.asdict(self),
        }


def compare(
    first: Recording | Sequence[RecordedRun],
    second: Recording | Sequence[RecordedRun],
    labels: tuple[str, str] | None = None,
    confidence: float = CONFIDENCE,
) -> Comparison:
    """Compare two sides.

    Args:
        first: the reference: a recording, or runs of the same program (`inputs.load_side`).
        second: the side that should be better.
        labels: names of the sides; by default those of the directories.
        confidence: confidence of the intervals, between 0 and 1.

    Returns:
        The comparison, with intervals and verdicts.
    """
    alternate = _alternate(_runs(first), _runs(second))
    paired = alternate is not None
    runs = alternate or (_runs(first), _runs(second))
    sides: Sides = ([*map(Measured, runs[0])], [*map(Measured, runs[1])])
    present = [
        label
        for label, _ in SIZE_ROWS
        if any(run.chosen(ALLREDUCE, label) for side in sides for run in side)
    ]
    others = _operations(sides)
    # The rows hold jointly, so that a table of seven rows does not have seven chances of an error.
    of_a_row = Method(1 - (1 - confidence) / max(len(present) + len(others), 1), paired)
    method = Method(confidence, paired)
    total = of_operation(sides, ALLREDUCE, method)
    moved = (total.first.message_bytes, total.second.message_bytes)
    ranks = [{run.run.ranks for run in side} for side in sides]
    step = of_steps(sides, method, exposed=False)
    return Comparison(
        labels=labels or _labels(first, second),
        runs=(len(sides[0]), len(sides[1])),
        pairs=len(sides[0]) if paired else 0,
        confidence=confidence,
        lead=step or of_run(sides, method),
        exposed=of_steps(sides, method, exposed=True),
        rows=tuple(
            _of_one_cut(of_operation(sides, ALLREDUCE, of_a_row, label), total) for label in present
        ),
        total=total,
        operations=tuple(of_operation(sides, name, of_a_row) for name in others),
        same_bytes=abs(moved[0] - moved[1]) <= _BYTES_TOLERANCE * max(moved),
        same_ranks=ranks[0] == ranks[1],
        step_parts=_step_parts(sides),
    )


def _alternate(
    first: Sequence[RecordedRun], second: Sequence[RecordedRun]
) -> tuple[list[RecordedRun], list[RecordedRun]] | None:
    """Return the runs in pairs, if in the order of their starts each two are from both sides."""
    started = [(run.start_unix_s, side) for side in (0, 1) for run in (first, second)[side]]
    if len(first) != len(second) or len(first) < LEAST_PAIRS or not all(s for s, _ in started):
        return None
    order = [side for _, side in sorted(started)]
    if any(order[place] == order[place + 1] for place in range(0, len(order), 2)):
        return None
    by_start = (sorted(side, key=lambda run: run.start_unix_s) for side in (first, second))
    return next(by_start), next(by_start)


def _operations(sides: Sides) -> list[str]:
    """Return the operations that both sides have, except allreduce, the longest first."""
    times: list[dict[str, float]] = []
    for side in sides:
        names = {name for run in side for name in run.rows}
        times.append({name: sum(run.side(name).time_s for run in side) for name in names})
    least = [_LEAST_SHARE * sum(side.values()) for side in times]
    common = times[0].keys() & times[1].keys() - {ALLREDUCE}
    found = [name for name in common if times[0][name] > least[0] or times[1][name] > least[1]]
    return sorted(found, key=lambda name: (-times[0][name] - times[1][name], name))


def _of_one_cut(row: ComparedRow, total: ComparedRow) -> ComparedRow:
    """Return the row, without a verdict if one side has far more of its bytes in it."""
    if total.improvement_percent is None:
        return row
    first, second = (
        side.message_bytes / whole.message_bytes if whole.message_bytes else 0.0
        for side, whole in ((row.first, total.first), (row.second, total.second))
    )
    if max(first, second) <= _CUT_TOLERANCE * min(first, second):
        return row
    return dataclasses.replace(
        row,
        improvement_percent=None,
        low_percent=None,
        high_percent=None,
        verdict=CUT_DIFFERENTLY,
    )


def _step_parts(sides: Sides) -> tuple[StepParts, StepParts] | None:
    first, second = ([run.run.parts for run in side] for side in sides)
    known = [[parts for parts in side if parts is not None] for side in (first, second)]
    if not (first and second) or known != [first, second]:
        return None
    return mean_parts(known[0]), mean_parts(known[1])


def _runs(side: Recording | Sequence[RecordedRun]) -> Sequence[RecordedRun]:
    return [run_of(side)] if isinstance(side, Recording) else side


def _labels(
    first: Recording | Sequence[RecordedRun], second: Recording | Sequence[RecordedRun]
) -> tuple[str, str]:
    runs = (_runs(first)[0].name, _runs(second)[0].name)
    if runs[0] != runs[1]:
        return runs
    if isinstance(first, Recording) and isinstance(second, Recording):
        return names_of(first.directory, second.directory)
    return ("A", "B")


def _sentences(found: Comparison) -> Iterator[str]:
    row, (first, second) = found.headline, found.labels
    if row.speedup is None:
        yield f"{first} and {second} have nothing in common to compare."
        return
    times = [format_seconds(side.time_s) for side in (row.first, row.second)]
    subject = {"step": "a step", "run": "the run"}.get(row.name, f"{row.name} of a rank")
    by = f"{times_text(row.speedup)} x as fast" + (
        f", {interval_text(row)} with {100 * found.confidence:g} %" if row.speedup_interval else ""
    )
    if row.name == ALLREDUCE and not found.same_bytes:
        by += "; for a byte"
    if row.verdict == NO_EVIDENCE:
        yield (
            f"No evidence that {second} differs from {first}: {subject} takes {times[1]} instead "
            f"of {times[0]} ({by})."
        )
    else:
        yield f"{second} is {row.verdict}: {subject} takes {times[1]} instead of {times[0]} ({by})."
    exposed = found.exposed
    if exposed and max(exposed.first.time_s, exposed.second.time_s) > 0:
        before, after = (format_seconds(s.time_s) for s in (exposed.first, exposed.second))
        yield f"Exposed communication takes {after} of it instead of {before}."


def interval_text(row: ComparedRow) -> str:
    """Format the speedup's interval as "1.45 to 1.80 x", or "-" if there is none."""
    if row.speedup_interval is None:
        return "-"
    low, high = row.speedup_interval
    if high > _WIDEST * low:
        return "too wide"
    return f"{times_text(low)} to {times_text(high)} x"


def times_text(speedup: float) -> str:
    """Format a speedup with three digits."""
    return (
        f"{speedup:.2f}"
        if speedup < 10
        else f"{speedup:.1f}"
        if speedup < 100
        else f"{speedup:.0f}"
    )
