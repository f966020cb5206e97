"""A row of a comparison: the times of two sides, their ratio, and a verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvprof.analysis.comparison.bootstrap import Method, Sample, weigh
from hvprof.analysis.comparison.inputs import RecordedRun
from hvprof.analysis.summary import BLOCKS, Row


@dataclass(frozen=True, slots=True)
class Side:
    """The calls of a rank: mean over the ranks of a run, then over the runs.

    In the row of the step, `calls` is the number of steps, and `time_s` that of one.
    """

    calls: float
    message_bytes: float
    time_s: float


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A row: an operation, or a part of time, of both sides.

    Attributes:
        name: "step", "exposed communication", "run", an operation, or a range of message sizes.
        first, second: the sides.
        improvement_percent: time that the second side saves for a step, a byte or a call; None if a
            row has no counterpart.
        low_percent, high_percent: its interval, None if the spread is unknown.
        verdict: "faster" or "slower" if the interval excludes 0, else "no evidence"; "cut
            differently" if the sides cut the same gradients into different messages; "" if a side
            has no such calls.
    """

    name: str
    first: Side
    second: Side
    improvement_percent: float | None
    low_percent: float | None
    high_percent: float | None
    verdict: str

    @property
    def speedup(self) -> float | None:
        """Return the time of the first side over that of the second."""
        return _speedup(self.improvement_percent)

    @property
    def speedup_interval(self) -> tuple[float, float] | None:
        """The speedup's interval."""
        low, high = _speedup(self.low_percent), _speedup(self.high_percent)
        return None if low is None or high is None else (low, high)


def _speedup(percent: float | None) -> float | None:
    # An interval may extend almost to 100 % of the time.
    return None if percent is None else 1 / max(1 - percent / 100, 1e-9)


class Measured:
    """The part of a run that a comparison needs."""

    def __init__(self, run: RecordedRun) -> None:
        """Sort the rows of its data traffic by operation."""
        self.run = run
        self.rows: dict[str, list[Row]] = {}
        for row in run.rows:
            self.rows.setdefault(row.operation, []).append(row)

    def chosen(self, operation: str, label: str | None) -> list[Row]:
        """Return the rows of an operation, of one message size or all."""
        found = self.rows.get(operation, [])
        return [row for row in found if label is None or row.message_size == label]

    def side(self, operation: str, label: str | None = None) -> Side:
        """Return the calls of an operation on a rank."""
        found, ranks = self.chosen(operation, label), self.run.ranks
        return Side(
            sum(row.calls / ranks for row in found),
            sum(row.message_bytes / ranks for row in found),
            sum(row.time_s for row in found),
        )

    def sample(self, operation: str, label: str | None, *, by_bytes: bool) -> Sample | None:
        """Return the time of an operation, in blocks if the run was recorded in blocks."""
        side, found = self.side(operation, label), self.chosen(operation, label)
        amount = side.message_bytes if by_bytes else side.calls
        if amount <= 0 or side.time_s <= 0:
            return None
        if not any(row.blocks_s for row in found):
            return Sample(np.array([side.time_s]), np.array([amount]))
        time_s: NDArray[np.float64] = np.zeros(BLOCKS)
        for row in found:
            # The time of a row without blocks is spread evenly over the run.
            time_s += np.array(row.blocks_s or (row.time_s / BLOCKS,) * BLOCKS)
        return Sample(time_s, np.full(BLOCKS, amount / BLOCKS))


Sides = tuple[Sequence[Measured], Sequence[Measured]]


def of_operation(
    sides: Sides, operation: str, method: Method, label: str | None = None, name: str = ""
) -> ComparedRow:
    """Compare an operation by its time per byte, or per call if nothing is sent."""
    means = [mean_side([run.side(operation, label) for run in side]) for side in sides]
    by_bytes = all(side.message_bytes > 0 for side in means)
    samples = [
        [
            sample
            for run in side
            if (sample := run.sample(operation, label, by_bytes=by_bytes)) is not None
        ]
        for side in sides
    ]
    return compared(name or label or operation, means[0], means[1], samples, method)


def of_steps(sides: Sides, method: Method, *, exposed: bool) -> ComparedRow | None:
    """Compare a step, or its exposed communication; None unless all runs mark steps."""
    found = [[run.run.steps for run in side] for side in sides]
    means, samples = [], []
    for side in found:
        blocks = [one for one in side if one is not None]
        if not side or len(blocks) < len(side):
            return None
        times = [one.exposed_s if exposed else one.time_s for one in blocks]
        counts = [one.steps for one in blocks]
        total_s, steps = sum(map(sum, times)), sum(map(sum, counts))
        means.append(Side(steps / len(side), 0.0, total_s / steps))
        samples.append(
            [Sample(np.array(t), np.array(n, float)) for t, n in zip(times, counts, strict=True)]
        )
    name = "exposed communication" if exposed else "step"
    return compared(name, means[0], means[1], samples, method)


def of_run(sides: Sides, method: Method) -> ComparedRow | None:
    """Compare the run, from its first rank's MPI_Init to its end; None if one has not ended."""
    times = [[run.run.run_s for run in side] for side in sides]
    if not all(side and all(time_s > 0 for time_s in side) for side in times):
        return None
    means = [Side(1.0, 0.0, sum(side) / len(side)) for side in times]
    samples = [[Sample(np.array([time_s]), np.ones(1)) for time_s in side] for side in times]
    return compared("run", means[0], means[1], samples, method)


def compared(
    name: str,
    first: Side,
    second: Side,
    samples: Sequence[Sequence[Sample]],
    method: Method,
) -> ComparedRow:
    """Make the row of two sides, with their samples' evidence if both have time to compare."""
    comparable = all(side and all(run.time_s.sum() > 0 for run in side) for side in samples)
    # If a run lacks this operation, the other runs are no longer pairs.
    if method.paired and len({len(side) for side in samples}) > 1:
        method = dataclasses.replace(method, paired=False)
    evidence = weigh(samples[0], samples[1], method) if comparable else None
    return ComparedRow(
        name=name,
        first=first,
        second=second,
        improvement_percent=evidence.improvement_percent if evidence else None,
        low_percent=evidence.low_percent if evidence else None,
        high_percent=evidence.high_percent if evidence else None,
        verdict=evidence.verdict if evidence else "",
    )


def mean_side(found: Sequence[Side]) -> Side:
    """Return the mean over the runs."""
    return Side(
        sum(side.calls for side in found) / len(found),
        sum(side.message_bytes for side in found) / len(found),
        sum(side.time_s for side in found) / len(found),
    )
