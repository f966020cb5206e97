"""Two sides compared: the allreduce time of a rank by message size.

The table is that of Anthony et al. for EDSR on Horovod: message size, time with the
default, time optimised, improvement; here with an interval and a verdict for each row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvprof.analysis.bootstrap import CONFIDENCE, Sample, weigh
from hvprof.analysis.contention import StepParts, mean_parts
from hvprof.analysis.inputs import RecordedRun, run_of
from hvprof.analysis.summary import BLOCKS, SIZE_ROWS, Row
from hvprof.model import Recording

COMPARISON_VERSION = 2
TOTAL = "total"

# More than this between the bytes of the sides, and their times are not of one job.
_BYTES_TOLERANCE = 0.01
# Horovod fuses a little differently in every run. More than this between the shares of a row
# in the bytes of the sides, and its messages are others.
_CUT_TOLERANCE = 1.25
CUT_DIFFERENTLY = "cut differently"


@dataclass(frozen=True, slots=True)
class Side:
    """The allreduce calls of a rank: mean over the ranks of a run, then over the runs."""

    calls: float
    message_bytes: float
    time_s: float


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One range of message sizes, or all of them ("total").

    `improvement_percent` is how much less time the second side takes for a byte: where
    both moved the same, how much less time it takes. None where the sides cut the same
    gradients into other messages, so that a row of one has no counterpart; the total has one.
    `low_percent` and `high_percent` are its interval, None if the spread is unknown.
    `verdict` is "faster", "slower" or "no evidence"; without improvement it is
    "cut differently", or "" where a side has no allreduce at all.
    """

    message_size: str
    first: Side
    second: Side
    improvement_percent: float | None
    low_percent: float | None
    high_percent: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The allreduce of two sides, by message size and in total.

    Attributes:
        labels: names of the sides.
        runs: of each side.
        resampled: what the intervals come from: "runs", "blocks" (of one run a side) or
            "" (neither: without intervals).
        confidence: of the total's interval; those of the rows hold jointly with it.
        rows, total: each range of message sizes, and all of them.
        same_bytes: False if the bytes that the sides moved differ by more than 1 %.
        same_ranks: False if the sides had different numbers of ranks.
        step_parts: parts of a step on each side, a mean over its runs; None if a run of either
            side marks no steps.
    """

    labels: tuple[str, str]
    runs: tuple[int, int]
    resampled: str
    confidence: float
    rows: tuple[ComparedRow, ...]
    total: ComparedRow
    same_bytes: bool
    same_ranks: bool
    step_parts: tuple[StepParts, StepParts] | None = None

    @property
    def same_cut(self) -> bool:
        """Whether both sides have about the same messages."""
        return all(row.verdict != CUT_DIFFERENTLY for row in self.rows)

    def as_json(self) -> dict:
        """The comparison in JSON's types; the keys are the attributes' names."""
        return {"comparison_version": COMPARISON_VERSION, **dataclasses.asdict(self)}


def compare(
    first: Recording | Sequence[RecordedRun],
    second: Recording | Sequence[RecordedRun],
    labels: tuple[str, str] | None = None,
    confidence: float = CONFIDENCE,
) -> Comparison:
    """Compare the allreduce of two sides.

    Args:
        first: the default: a recording, or runs of the same thing (`sides.load_side`).
        second: the side that should be better.
        labels: names of the sides; by default those of the directories.
        confidence: of the intervals, between 0 and 1.

    Returns:
        A row for each range of message sizes, and their total.
    """
    sides = [[_Measured(run) for run in _runs(side)] for side in (first, second)]
    present = [
        label
        for label, _ in SIZE_ROWS
        if any(label in measured.by_size for side in sides for measured in side)
    ]
    # So that all rows hold together: a table of seven must not have seven chances to err.
    of_a_row = 1 - (1 - confidence) / max(len(present), 1)
    total = _compared(TOTAL, present, sides, confidence)
    compared = tuple(
        _of_one_cut(_compared(label, [label], sides, of_a_row), total) for label in present
    )
    moved = (total.first.message_bytes, total.second.message_bytes)
    ranks = [{measured.run.ranks for measured in side} for side in sides]
    return Comparison(
        labels=labels or _labels(first, second),
        runs=(len(sides[0]), len(sides[1])),
        resampled=_resampled(sides, total),
        confidence=confidence,
        rows=compared,
        total=total,
        same_bytes=abs(moved[0] - moved[1]) <= _BYTES_TOLERANCE * max(moved),
        same_ranks=ranks[0] == ranks[1],
        step_parts=_step_parts(sides),
    )


def _of_one_cut(row: ComparedRow, total: ComparedRow) -> ComparedRow:
    """The row, without a verdict where one side has far more of its bytes in it."""
    if total.improvement_percent is None:
        return row
    first, second = (
        side.message_bytes / whole.message_bytes
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


def _step_parts(sides: Sequence[Sequence[_Measured]]) -> tuple[StepParts, StepParts] | None:
    first, second = ([measured.run.parts for measured in side] for side in sides)
    known = [[parts for parts in side if parts is not None] for side in (first, second)]
    if not (first and second) or known != [first, second]:
        return None
    return mean_parts(known[0]), mean_parts(known[1])


class _Measured:
    """A run's allreduce by message size: calls, bytes and seconds of a rank."""

    def __init__(self, run: RecordedRun) -> None:
        self.run = run
        self.by_size: dict[str, Side] = {}
        self.blocks: dict[str, NDArray[np.float64]] = {}
        for row in run.rows:
            if row.operation == "allreduce":
                self._add(row)

    def _add(self, row: Row) -> None:
        label, ranks = row.message_size, self.run.ranks
        before = self.by_size.get(label, Side(0, 0, 0))
        self.by_size[label] = Side(
            before.calls + row.calls / ranks,
            before.message_bytes + row.message_bytes / ranks,
            before.time_s + row.time_s,
        )
        # A row without blocks is one whose time is spread evenly over the run.
        blocks = row.blocks_s or (row.time_s / BLOCKS,) * BLOCKS
        self.blocks[label] = self.blocks.get(label, np.zeros(BLOCKS)) + np.array(blocks)

    def sum(self, labels: Sequence[str]) -> Side:
        found = [self.by_size[label] for label in labels if label in self.by_size]
        return Side(
            sum(side.calls for side in found),
            sum(side.message_bytes for side in found),
            sum(side.time_s for side in found),
        )

    def in_blocks(self, labels: Sequence[str]) -> Sample | None:
        """The run cut into blocks; None where it was not recorded in blocks."""
        if not any(row.blocks_s for row in self.run.rows if row.message_size in labels):
            return None
        time_s = sum((self.blocks[label] for label in labels if label in self.blocks), np.zeros(1))
        amount = self.sum(labels).message_bytes / BLOCKS
        return Sample(np.asarray(time_s), np.full(BLOCKS, amount), blocks=True)


def _runs(side: Recording | Sequence[RecordedRun]) -> Sequence[RecordedRun]:
    return [run_of(side)] if isinstance(side, Recording) else side


def _compared(
    name: str, labels: Sequence[str], sides: Sequence[Sequence[_Measured]], confidence: float
) -> ComparedRow:
    first, second = (_sample(side, labels) for side in sides)
    evidence = weigh(first, second, confidence) if first and second else None
    return ComparedRow(
        message_size=name,
        first=_mean(sides[0], labels),
        second=_mean(sides[1], labels),
        improvement_percent=evidence.improvement_percent if evidence else None,
        low_percent=evidence.low_percent if evidence else None,
        high_percent=evidence.high_percent if evidence else None,
        verdict=evidence.verdict if evidence else "",
    )


def _sample(side: Sequence[_Measured], labels: Sequence[str]) -> Sample | None:
    """One entry for each run that has such messages; the blocks of a run that is alone."""
    sums = [measured.sum(labels) for measured in side]
    sums = [found for found in sums if found.message_bytes > 0 and found.time_s > 0]
    if not sums:
        return None
    if len(side) == 1 and (blocks := side[0].in_blocks(labels)) is not None:
        return blocks
    return Sample(
        np.array([found.time_s for found in sums]),
        np.array([found.message_bytes for found in sums]),
    )


def _mean(side: Sequence[_Measured], labels: Sequence[str]) -> Side:
    sums = [measured.sum(labels) for measured in side]
    return Side(
        sum(found.calls for found in sums) / len(sums),
        sum(found.message_bytes for found in sums) / len(sums),
        sum(found.time_s for found in sums) / len(sums),
    )


def _resampled(sides: Sequence[Sequence[_Measured]], total: ComparedRow) -> str:
    if total.low_percent is None:
        return ""
    return "blocks" if min(map(len, sides)) == 1 else "runs"


def _labels(
    first: Recording | Sequence[RecordedRun], second: Recording | Sequence[RecordedRun]
) -> tuple[str, str]:
    runs = (_runs(first)[0].name, _runs(second)[0].name)
    if runs[0] != runs[1]:
        return runs
    if isinstance(first, Recording) and isinstance(second, Recording):
        return (str(first.directory), str(second.directory))
    return ("A", "B")


def interval_text(row: ComparedRow) -> str:
    """The interval as "+1.2 to +4.5 %", or "-" where there is none."""
    if row.low_percent is None or row.high_percent is None:
        return "-"
    # A few noisy runs leave intervals that say only that nothing is known.
    low = "<-999" if row.low_percent < -999 else f"{row.low_percent:+.1f}"
    return f"{low} to {row.high_percent:+.1f} %"
