"""Whether two sides differ: bootstrap intervals of a ratio of times, and verdicts.

It resamples whole runs, or long blocks of one run: the calls of a run depend on
each other, and an interval from them would be far too narrow. The bootstrap gives the
standard error of the ratio, Student's t the width, so that a few runs suffice (Hesterberg,
"What Teachers Should Know About the Bootstrap", The American Statistician 69, 2015:
percentiles of a small sample's resamples are too narrow).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FASTER, SLOWER, NO_EVIDENCE = "faster", "slower", "no evidence"
CONFIDENCE = 0.99

# Difference between runs, which the blocks of one run cannot show, as the
# standard deviation of log(time). Some percent are usual for MPI (Hunold and Carpen-Amarie,
# "Reproducible MPI Benchmarking Is Still Not As Easy As You Think", 2016).
BETWEEN_RUNS = 0.03

_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Sample:
    """Times of one side: one entry for each run, or for each block of one run.

    Attributes:
        time_s: (n,) seconds of a rank.
        amount: (n,) what was done in that time, such as bytes.
        blocks: the entries are consecutive blocks of one run.
    """

    time_s: NDArray[np.float64]
    amount: NDArray[np.float64]
    blocks: bool = False

    @property
    def rate(self) -> float:
        """Seconds for one unit of the amount, over all entries."""
        return float(self.time_s.sum() / self.amount.sum())


@dataclass(frozen=True, slots=True)
class Evidence:
    """How much less time the second side needs, in percent of the first side's.

    Attributes:
        improvement_percent: the best estimate; negative if the second is slower.
        low_percent, high_percent: the interval; None where a side has one entry only.
        verdict: "faster" or "slower" if the interval excludes 0, else "no evidence".
    """

    improvement_percent: float
    low_percent: float | None
    high_percent: float | None
    verdict: str


def weigh(first: Sample, second: Sample, confidence: float = CONFIDENCE) -> Evidence:
    """Compare two samples.

    Args:
        first: what the second is measured against; its amount and time are above 0.
        second: likewise.
        confidence: that the interval holds the true value.
    """
    log_ratio = float(np.log(second.rate / first.rate))
    half_width = _half_width(first, second, confidence)
    if half_width is None:
        return Evidence(_percent(log_ratio), None, None, NO_EVIDENCE)
    low, high = log_ratio - half_width, log_ratio + half_width
    verdict = FASTER if high < 0 else SLOWER if low > 0 else NO_EVIDENCE
    return Evidence(_percent(log_ratio), _percent(high), _percent(low), verdict)


def _half_width(first: Sample, second: Sample, confidence: float) -> float | None:
    if min(len(first.time_s), len(second.time_s)) < 2:
        return None
    if not all(np.all(side.time_s > 0) and np.all(side.amount > 0) for side in (first, second)):
        return None
    # scipy is slow to import, and only comparisons need it.
    from scipy.stats import t as student

    # The same numbers in, the same verdict out: a gate must not waver.
    generator = np.random.default_rng(0)
    clustering = np.array([_clustering(side) for side in (first, second)])
    counts = np.array([len(side.time_s) for side in (first, second)])
    variances = np.array([_variance(side, generator) for side in (first, second)]) * clustering
    between = BETWEEN_RUNS**2 * sum(side.blocks for side in (first, second))
    total = variances.sum() + between
    # Welch and Satterthwaite: the sides may differ in runs and in spread. The spread of
    # dependent blocks is known less well than that of independent ones; the square root
    # lies between the two counts, and holds in simulation (tests/single/hvprof/test_compare.py).
    degrees = np.maximum(counts / np.sqrt(clustering) - 1, 1)
    doubt = (variances**2 / degrees).sum()
    freedom = total**2 / doubt if doubt else np.inf
    return float(student.ppf((1 + confidence) / 2, freedom) * np.sqrt(total))


def _variance(side: Sample, generator: np.random.Generator) -> float:
    """Variance of log(rate), by the bootstrap."""
    count = len(side.time_s)
    chosen = generator.integers(0, count, (_RESAMPLES, count))
    logs = np.log(side.time_s[chosen].sum(axis=1) / side.amount[chosen].sum(axis=1))
    return float(logs.var()) * count / (count - 1)


def _clustering(side: Sample) -> float:
    """How much more the mean of dependent blocks varies than that of independent ones."""
    rates = np.log(side.time_s / side.amount)
    rates = rates - rates.mean()
    power = float((rates**2).sum())
    if not side.blocks or len(rates) < 3 or power == 0:
        return 1.0
    # The estimate from few blocks is too low by about (1 + 3 r) / n; its standard
    # error, 1 / sqrt(n), is added, as one that is too low by chance makes false claims.
    plain = float((rates[1:] * rates[:-1]).sum()) / power
    count = len(rates)
    correlation = min(max((plain + 1 / count) / (1 - 3 / count) + 1 / count**0.5, 0.0), 0.9)
    return (1 + correlation) / (1 - correlation)


def _percent(log_ratio: float) -> float:
    return float(100 * -np.expm1(log_ratio))
