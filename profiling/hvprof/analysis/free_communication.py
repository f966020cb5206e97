"""Speedup of steps with zero-cost communication.

A step without communication lacks the time that the training thread was blocked on it, the time
that it was queued behind communicating threads (contention.py), and the time of passing on
gradients. The effect of an exchange on other threads and on memory bandwidth is not in the figure.

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

# The recorder's name for the time of hooks in a step (hvd_ext.events.HandingOver).
_HOOKS = "gradient hooks"
_BLOCKS, _RESAMPLES = 20, 500
_QUANTILES = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class FreeSpeedup:
    """Time of a step over its time without communication.

    Attributes:
        low, high: the interval.
        knows_queue: False if the kernel does not count the slowdown: then `speedup` and `low`
            include only exposed communication, and `high` includes all time that communicating
            threads may have taken.
    """

    speedup: float
    low: float
    high: float
    knows_queue: bool


def free_speedup(recording: Recording) -> FreeSpeedup | None:
    """Return the speedup; None if no rank marks steps or all of a step is communication."""
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
    """Return the times of each step: measured, without communication, and the least possible."""
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
            # At most the time that the thread was off its core, and that others communicated.
            off_s = max(0.0, ran_s - hooks_s - step.io_s - step.cpu_s)
            least_s -= min(step.communicating_s, off_s)
        rows.append((step.time_s, free_s, least_s))
    return np.array(rows).reshape(-1, 3)


def _hooks_s(rank: RankRecording) -> float:
    """Return the time of gradient hooks in a step: the median of the steps that timed them."""
    for region in rank.regions:
        if region.name == _HOOKS:
            whole = region.calls // region.block_calls if region.block_calls else 0
            if whole:
                return statistics.median(region.blocks_s[:whole]) / region.block_calls
            return region.time_s / region.calls
    return 0.0


def _ratios(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return speedups by the medians of the steps; all ranks have the same weight."""
    times_s = np.median(table, axis=1).sum(axis=0)
    found: NDArray[np.float64] = times_s[0] / np.maximum(times_s[1:], 1e-9)
    return found


def _resampled(count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    length = max(1, count // _BLOCKS)
    starts = generator.integers(0, count - length + 1, -(-count // length))
    return (starts[:, None] + np.arange(length)).ravel()[:count]
