"""Speedup of steps with zero-cost communication.

A step without communication lacks what the training thread was blocked on it, what it was queued
for behind the threads that communicate (contention.py), and what it took to hand gradients over.
Its other threads, and the memory's bandwidth, stay as they are: what an exchange takes of those is
not in the figure.

The medians of the steps are compared, so that a checkpoint or a first step does not count; the
interval is of 95 %, from blocks of consecutive steps, which depend on each other.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvprof.analysis.contention import Host, hosts
from hvprof.model import RankRecording, Recording

# As the recorder calls what hooks take of a step (hvd_ext.events.HandingOver).
_HOOKS = "gradient hooks"
_BLOCKS, _RESAMPLES = 20, 500
_QUANTILES = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class FreeSpeedup:
    """Time of a step over its time without communication.

    Attributes:
        low, high: the interval.
        knows_queue: False where the kernel does not count what communication slows down: then
            `speedup` and `low` are of exposed communication alone, and `high` has all that the
            threads that communicate may have taken.
    """

    speedup: float
    low: float
    high: float
    knows_queue: bool


def free_speedup(recording: Recording) -> FreeSpeedup | None:
    """The speedup, or None where no rank marks steps or all of a step is communication."""
    tables = [_table(rank, host) for host in hosts(recording) for rank in host.ranks]
    if not tables:
        return None
    count = min(map(len, tables))
    # (rank, step, [time, without communication, without what it may have taken])
    table = np.array([one[len(one) - count :] for one in tables])
    if not count or np.median(table[..., 1], axis=1).min() <= 0:
        return None
    generator = np.random.default_rng(0)
    drawn = np.array([_ratios(table[:, _resampled(count, generator)]) for _ in range(_RESAMPLES)])
    low, high = (np.quantile(drawn[:, i], q) for i, q in enumerate(_QUANTILES))
    knows_queue = all(rank.knows_queue for host in hosts(recording) for rank in host.ranks)
    speedup = float(_ratios(table)[0])
    return FreeSpeedup(speedup, float(min(low, speedup)), float(max(high, speedup)), knows_queue)


def _table(rank: RankRecording, host: Host) -> NDArray[np.float64]:
    """Times of each step: measured, without communication, and the least that may be."""
    rows = []
    hooks_s = _hooks_s(rank)
    for step in rank.steps:
        if not step.time_s:
            continue
        slowed_s = host.slowed_s(step, host.median_least_s)
        ran_s = step.time_s - step.exposed_s
        free_s = ran_s - (slowed_s or 0.0) - hooks_s
        least_s = free_s
        if slowed_s is None:
            # No longer than the thread was off its core, and than others communicated.
            off_s = max(0.0, ran_s - hooks_s - step.io_s - step.cpu_s)
            least_s -= min(step.communicating_s, off_s)
        rows.append((step.time_s, free_s, least_s))
    return np.array(rows).reshape(-1, 3)


def _hooks_s(rank: RankRecording) -> float:
    """Time of gradient hooks in a step, by the median of the steps in which they were timed."""
    for region in rank.regions:
        if region.name == _HOOKS:
            whole = region.calls // region.block_calls if region.block_calls else 0
            if whole:
                return statistics.median(region.blocks_s[:whole]) / region.block_calls
            return region.time_s / region.calls
    return 0.0


def _ratios(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Speedups by the medians of the steps, each rank's counting alike."""
    times_s = np.median(table, axis=1).sum(axis=0)
    found: NDArray[np.float64] = times_s[0] / np.maximum(times_s[1:], 1e-9)
    return found


def _resampled(count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    length = max(1, count // _BLOCKS)
    starts = generator.integers(0, count - length + 1, -(-count // length))
    return (starts[:, None] + np.arange(length)).ravel()[:count]
