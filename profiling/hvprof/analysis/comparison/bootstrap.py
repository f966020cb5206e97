"""Whether two sides differ: the ratio of their times, its interval, and a verdict.

A side is a few runs. Two sources of chance are treated separately. Within a run, long blocks of it
are resampled, because its calls and steps depend on each other, and an interval from single ones
would be far too narrow. Between runs, the spread of the given runs counts, moderated by the usual
spread: a few runs say little about their spread, and Student's t would then make the interval very
wide (Smyth, "Linear Models and Empirical Bayes Methods", Statistical Applications in Genetics 3,
2004). The bootstrap gives the standard error, Student's t the width (Hesterberg, "What Teachers
Should Know About the Bootstrap", The American Statistician 69, 2015).

Runs that were recorded alternately are pairs: a disturbance of the machine slows both runs of a
pair. Their ratios are then one sample, and only its spread counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FASTER, SLOWER, NO_EVIDENCE = "faster", "slower", "no evidence"
CONFIDENCE = 0.95

# Assumed difference between runs, as the standard deviation of log(time), for sides with one run.
# Some percent are usual for MPI (Hunold and Carpen-Amarie, "Reproducible MPI Benchmarking Is Still
# Not As Easy As You Think", 2016).
BETWEEN_RUNS = 0.03
# With several runs on each side, it counts like this number of additional runs.
_ASSUMED_RUNS = 1
# With only two pairs, the runs of each side say more about the spread than the ratios.
LEAST_PAIRS = 3

_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Sample:
    """A run: one entry, or one for each of its consecutive blocks.

    Attributes:
        time_s: (n,) seconds of a rank.
        amount: (n,) work of that time, such as bytes or steps.
    """

    time_s: NDArray[np.float64]
    amount: NDArray[np.float64]

    @property
    def rate(self) -> float:
        """Return the seconds for one unit of the amount, over all entries."""
        return float(self.time_s.sum() / self.amount.sum())


@dataclass(frozen=True, slots=True)
class Evidence:
    """The time that the second side saves, in percent of the first side's.

    Attributes:
        improvement_percent: the best estimate; negative if the second side is slower.
        low_percent, high_percent: the interval; None if a side is a single number.
        verdict: "faster" or "slower" if the interval excludes 0, else "no evidence".
    """

    improvement_percent: float
    low_percent: float | None
    high_percent: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Method:
    """The method of a comparison.

    Attributes:
        confidence: probability that an interval contains the true value.
        paired: whether the sides' runs were recorded alternately, and are in that order.
    """

    confidence: float = CONFIDENCE
    paired: bool = False


def weigh(
    first: Sequence[Sample], second: Sequence[Sample], method: Method | None = None
) -> Evidence:
    """Compare two sides.

    Args:
        first: runs of the reference; each has an amount and a time above 0.
        second: runs of the other side.
        method: by default the method for runs without an order.
    """
    method = method or Method()
    log_ratio = float(np.log(_rate(second) / _rate(first)))
    if method.paired:
        logs = np.log([b.rate / a.rate for a, b in zip(first, second, strict=True)])
        log_ratio = float(logs.mean())
        error = float(logs.std(ddof=1)) / np.sqrt(len(logs))
        half_width: float | None = _student(method.confidence, len(logs) - 1) * error
    else:
        half_width = _half_width(first, second, method.confidence)
    if half_width is None:
        return Evidence(_percent(log_ratio), None, None, NO_EVIDENCE)
    low, high = log_ratio - half_width, log_ratio + half_width
    verdict = FASTER if high < 0 else SLOWER if low > 0 else NO_EVIDENCE
    return Evidence(_percent(log_ratio), _percent(high), _percent(low), verdict)


def _rate(side: Sequence[Sample]) -> float:
    times_s, amounts = (sum(float(part.sum()) for part in parts) for parts in _columns(side))
    return times_s / amounts


def _columns(
    side: Sequence[Sample],
) -> tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]]:
    return [run.time_s for run in side], [run.amount for run in side]


def _half_width(
    first: Sequence[Sample], second: Sequence[Sample], confidence: float
) -> float | None:
    sides = (first, second)
    if any(len(side) == 1 and len(side[0].time_s) == 1 for side in sides):
        return None
    if any(np.any(part <= 0) for side in sides for parts in _columns(side) for part in parts):
        return None
    # A fixed seed, so that the same numbers give the same verdict.
    generator = np.random.default_rng(0)
    parts = [part for side in sides for part in _variances(side, generator)]
    total = sum(variance for variance, _ in parts)
    # Welch and Satterthwaite: the sides may differ in runs and in spread.
    doubt = sum(variance**2 / degrees for variance, degrees in parts)
    freedom = total**2 / doubt if doubt else np.inf
    return _student(confidence, freedom) * float(np.sqrt(total))


def _student(confidence: float, freedom: float) -> float:
    # scipy is slow to import, and only comparisons need it.
    from scipy.stats import t as student

    return float(student.ppf((1 + confidence) / 2, freedom))


def _variances(
    side: Sequence[Sample], generator: np.random.Generator
) -> Iterator[tuple[float, float]]:
    """Return parts of the variance of a side's log(rate), and the degrees of freedom of each."""
    within = [_within(run, generator) for run in side]
    if len(side) == 1:
        yield within[0]
        yield BETWEEN_RUNS**2, np.inf
        return
    runs, more = len(side), _ASSUMED_RUNS
    assumed = BETWEEN_RUNS**2 + sum(variance for variance, _ in within) / runs
    found = float(np.var([np.log(run.rate) for run in side], ddof=1))
    if found > assumed:
        # The usual spread does not describe these runs.
        yield found / runs, runs - 1
        return
    yield (more * assumed + (runs - 1) * found) / (more + runs - 1) / runs, more + runs - 1


def _within(run: Sample, generator: np.random.Generator) -> tuple[float, float]:
    """Return the variance of a run's log(rate) by its blocks, and its degrees of freedom."""
    count = len(run.time_s)
    if count == 1:
        return 0.0, 1.0
    chosen = generator.integers(0, count, (_RESAMPLES, count))
    logs = np.log(run.time_s[chosen].sum(axis=1) / run.amount[chosen].sum(axis=1))
    clustering = _clustering(run)
    # The spread of dependent blocks is less certain than that of independent ones; the square root
    # is between the two counts, and is right in simulation (tests/single/hvprof/test_compare.py).
    degrees = max(count / float(np.sqrt(clustering)) - 1, 1.0)
    return float(logs.var()) * count / (count - 1) * clustering, degrees


def _clustering(run: Sample) -> float:
    """Return how much more the mean of dependent blocks varies than that of independent ones."""
    rates = np.log(run.time_s / run.amount)
    rates = rates - rates.mean()
    power = float((rates**2).sum())
    if len(rates) < 3 or power == 0:
        return 1.0
    # The estimate from few blocks is too low by about (1 + 3 r) / n; its standard error, 1 /
    # sqrt(n), is added, because an estimate that is too low by chance makes false claims.
    plain = float((rates[1:] * rates[:-1]).sum()) / power
    count = len(rates)
    correlation = plain + 1 / count
    correlation = correlation / (1 - 3 / count) if count > 3 else 0.9
    correlation = min(max(correlation + 1 / count**0.5, 0.0), 0.9)
    return (1 + correlation) / (1 - correlation)


def _percent(log_ratio: float) -> float:
    return float(100 * -np.expm1(log_ratio))
