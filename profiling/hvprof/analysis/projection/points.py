"""Measured sizes: from a csv file, or from recordings of the same training."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

from hvd_ext.errors import UsageError
from hvprof.model import Recording

_COLUMNS = ("ranks", "throughput")
_MOST_RANKS = 2**31


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement.

    Attributes:
        ranks: ranks of the job.
        throughput: work a second, of all ranks together.
    """

    ranks: int
    throughput: float


def read_points(path: Path) -> tuple[Point, ...]:
    """Read the columns `ranks` and `throughput` of a csv file; others are left alone.

    Raises:
        UsageError: it cannot be read, or a line is not such a pair; the message names the line.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise UsageError(
                    f"{path} has no column {missing[0]!r}: begin it with the line ranks,throughput"
                )
            return tuple(_point(row, f"{path}:{reader.line_num}") for row in reader)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} is not a CSV file: {error}") from None


def recorded_point(recording: Recording, *, strong: bool) -> Point:
    """The speed of a recorded training, by the median of its steps.

    Its work is unknown: with the batch of a rank kept it is counted in batches of a rank, with
    that of all ranks kept in steps.

    Raises:
        UsageError: it marks no steps.
    """
    medians = [
        statistics.median(times)
        for rank in recording.ranks
        if (times := [step.time_s for step in rank.steps if step.time_s > 0])
    ]
    if not medians:
        raise UsageError(
            f"{recording.directory} has no steps: mark them with hvprof.step() and record again"
        )
    per_s = 1 / statistics.fmean(medians)
    return Point(recording.size, per_s if strong else recording.size * per_s)


def _point(row: dict[str, str | None], where: str) -> Point:
    ranks, throughput = (_number(row[name], name, where) for name in _COLUMNS)
    if ranks != int(ranks) or ranks > _MOST_RANKS:
        raise UsageError(f"{where}: ranks {row['ranks']!r}: use a whole number")
    return Point(int(ranks), float(throughput))


def _number(text: str | None, name: str, where: str) -> Decimal:
    try:
        value = Decimal((text or "").strip())
    except InvalidOperation:
        value = Decimal(0)
    if not value.is_finite() or not 1e-300 < value < 1e300:
        raise UsageError(f"{where}: {name} {text!r}: use a number above 0")
    return value


def sizes_of(points: Sequence[Point]) -> list[int]:
    """The different numbers of ranks, ascending."""
    return sorted({point.ranks for point in points})
