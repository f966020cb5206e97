"""The platform that explains measurements on few hosts, found with the simulator itself.

Simulated times are sums and maxima of the times of latency, bytes, messages and combining, so close
to any platform they are linear in these (without a constant). The platform of the least mean
relative error therefore follows from a few rounds of linear least squares without negative values,
whose coefficients are differences of simulated times. Samples are weighted by the inverse of their
errors, so that errors count linearly and not squared: effects that no platform explains (such as
messages of one algorithm that queue behind one another) then do not distort the rest.
"""

from __future__ import annotations

import functools
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hvd_ext.allreduce.algorithms import NATIVE, SHARED_MEMORY
from hvd_ext.allreduce.table import Row
from hvd_ext.cli import Advance
from hvd_ext.errors import UsageError
from hvd_launch.simulate import trace
from hvd_launch.simulate.platform import Platform
from hvd_launch.simulate.replay import check_installed, replay
from hvd_launch.simulate.workers import run_all

_ROUNDS = 4
_STEP = 0.02  # change of a value, for a difference of times
_LEAST_NS = 1e-3
# A sample with a smaller error has the weight of this error.
_WEIGHINGS, _EXPLAINED = 30, 0.01
Values = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Sample:
    """The measured time of one allreduce: one rank on each of `nodes` hosts."""

    nodes: int
    algorithm: str
    message_bytes: int
    time_s: float


@dataclass(frozen=True)
class Calibration:
    """A platform, and how well it explains the samples: |simulated - measured| / measured."""

    platform: Platform
    median_error: float
    worst_error: float


def samples_of(rows: Sequence[Row]) -> list[Sample]:
    """Times of hvd_ext's algorithms between nodes, from a table's rows of 2 and 4 nodes.

    Raises:
        UsageError: there is no such row with times.
    """
    found = [
        Sample(row.nodes, name, size, us / 1e6)
        for row in rows
        if row.nodes in (2, 4) and row.ranks_per_node == 1 and not row.simulated
        if row.dtype_class in ("float", "any") and row.memory == "host"
        for size, by_name in row.measured_us
        for name, us in by_name.items()
        if name not in (NATIVE, SHARED_MEMORY) and us > 0
    ]
    if not found:
        raise UsageError(
            "no times of 2 or 4 nodes with 1 rank each: measure them with --calibrate and no TABLE"
        )
    return found


def calibrate(samples: Sequence[Sample], start: Platform, advance: Advance) -> Calibration:
    """Find the platform that explains the samples.

    Args:
        samples: samples of 2 and 4 hosts, several algorithms and sizes.
        start: a platform; topology, memory and eager limit stay as they are there.
        advance: is called after each of the replays, which take seconds to minutes.

    Raises:
        HvdExtError: no smpirun, or it failed.
    """
    check_installed()
    measured = np.array([sample.time_s for sample in samples])
    values = _first_guess(samples)
    total, done = len(samples) * (_ROUNDS * (len(values) + 1) + 2), 0
    with tempfile.TemporaryDirectory(prefix="hvd-simulate-") as folder:
        lists = _traces(Path(folder), samples, start)

        def count(_: float) -> None:
            nonlocal done
            done += 1
            advance(done, total=total)

        def simulate(all_values: Sequence[Values]) -> list[Values]:
            jobs = [
                functools.partial(_replay, start, one, sample, listed)
                for one in all_values
                for sample, listed in zip(samples, lists, strict=True)
            ]
            times = run_all(jobs, count)
            return list(np.array(times).reshape(len(all_values), len(samples)))

        best, least = values, np.inf
        for _ in range(_ROUNDS):
            here, slopes = _slopes(values, simulate)
            error = _error(here, measured)
            if error < least:
                best, least = values, error
            values = _solve(slopes, measured)
        (here,) = simulate([values])
        if _error(here, measured) < least:
            best = values
        (here,) = simulate([best])
    errors = np.abs(here - measured) / measured
    return Calibration(_platform(start, best), float(np.median(errors)), float(errors.max()))


def _traces(folder: Path, samples: Sequence[Sample], start: Platform) -> list[Path]:
    return [
        trace.write(
            folder / str(number), one.algorithm, one.nodes, one.message_bytes, start.eager_bytes
        )[0]
        for number, one in enumerate(samples)
    ]


def _replay(start: Platform, values: Values, sample: Sample, listed: Path) -> float:
    return replay(_platform(start, values), sample.nodes, 1, listed)


def _slopes(
    values: Values, simulate: Callable[[Sequence[Values]], list[Values]]
) -> tuple[Values, Values]:
    """Simulated times, and their change with each of the values."""
    moved = []
    for index in range(len(values)):
        other = values.copy()
        other[index] *= 1 + _STEP
        moved.append(other)
    here, *there = simulate([values, *moved])
    columns = [(times - here) / (_STEP * value) for times, value in zip(there, values, strict=True)]
    return here, np.stack(columns, axis=1)


def _solve(slopes: Values, measured: Values) -> Values:
    # Slow to import, and training needs none of it.
    from scipy.optimize import nnls

    terms = slopes / measured[:, None]
    scale = np.abs(terms).max(axis=0)
    scale[scale == 0] = 1.0
    terms /= scale
    weights = np.ones(len(measured))
    for _ in range(_WEIGHINGS):
        found, _ = nnls(terms * weights[:, None], weights)
        weights = np.maximum(np.abs(terms @ found - 1), _EXPLAINED) ** -0.5
    return np.maximum(found / scale, _LEAST_NS)


def _error(simulated: Values, measured: Values) -> float:
    return float(np.mean(np.abs(simulated - measured) / measured))


def _first_guess(samples: Sequence[Sample]) -> Values:
    """Latency and costs from the shortest messages, bandwidth from the longest."""
    shortest = min(sample.message_bytes for sample in samples)
    longest = max(sample.message_bytes for sample in samples)
    short_ns = 1e9 * min(s.time_s for s in samples if s.message_bytes == shortest)
    long_s = statistics.median(s.time_s for s in samples if s.message_bytes == longest)
    byte_ns = 1e9 * long_s / longest / 2
    return np.array([short_ns / 8, byte_ns, short_ns / 8, byte_ns / 100, byte_ns / 100])


def _platform(start: Platform, values: Values) -> Platform:
    """The platform of latency, link, message, byte and combining, all in ns."""
    latency, link, message, byte, combine = (float(value) for value in values)
    return replace(
        start,
        latency_us=latency / 1e3,
        link_gbit=8 / link,
        message_us=message / 1e3,
        byte_ns=byte,
        combine_ns=combine,
    )


def figures(calibration: Calibration) -> Mapping[str, float]:
    """Numbers for a report."""
    platform = calibration.platform
    return {
        "latency_us": platform.latency_us,
        "link_gbit": platform.link_gbit,
        "message_us": platform.message_us,
        "byte_ns": platform.byte_ns,
        "combine_ns": platform.combine_ns,
        "median_error": calibration.median_error,
        "worst_error": calibration.worst_error,
    }
