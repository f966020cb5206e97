"""What communication costs a training, and what more ranks could bring, from live steps.

The questions are those of Keuper and Pfreundt ("Distributed Training of Deep Neural
Networks: Theoretical and Practical Limits of Parallel Scalability", MLHPC 2016): speedup
if communication were free, the share that does not scale, and where more ranks stop paying.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hvprof.analysis.contention import StepParts
from hvprof.analysis.free_communication import FreeSpeedup
from hvprof.recording.model import Recording

_DOUBLINGS = 6
_RESAMPLES = 500


@dataclass(frozen=True, slots=True)
class ProjectedSpeedup:
    """Speedup over the recorded ranks at `size` ranks, each with its lowest and highest.

    Weak: the batch of a rank stays; strong: the batch of all ranks together stays.
    """

    size: int
    weak: float
    weak_low: float
    weak_high: float
    strong: float
    strong_low: float
    strong_high: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits read off the steps.

    Attributes:
        free_speedup: how much faster steps would be without communication; free_low and
            free_high are its interval.
        communication_percent: share of a step that communication takes: blocked on it, and
            slowed down by it as far as the kernel tells.
        io_percent: share of a step that was blocked on I/O.
        serial_percent: what does not shrink when the batch is split further: communication
            and "other" (Amdahl's share).
        most_speedup: Amdahl's limit from serial_percent; None if nothing is serial.
        projection: at 1, 2, 4, ... times the recorded ranks.
    """

    free_speedup: float
    free_low: float
    free_high: float
    communication_percent: float
    io_percent: float
    serial_percent: float
    most_speedup: float | None
    projection: tuple[ProjectedSpeedup, ...]


def limits(
    recording: Recording, parts: StepParts | None, free: FreeSpeedup | None
) -> Limits | None:
    """The limits of a run that marked its steps, on at least 2 ranks; else None."""
    size = recording.size
    if parts is None or free is None or size < 2:
        return None
    computing_s = parts.time_s - parts.communication_s - parts.other_s
    shares = np.array([computing_s, parts.communication_s, parts.other_s]) / parts.time_s
    serial = float(shares[1] + shares[2])
    spread = _spread(recording, parts.communication_s - parts.exposed_s)
    sizes = [size * 2**power for power in range(_DOUBLINGS + 1)]
    return Limits(
        free_speedup=free.speedup,
        free_low=free.low,
        free_high=free.high,
        communication_percent=float(100 * shares[1]),
        io_percent=100 * parts.io_s / parts.time_s,
        serial_percent=100 * serial,
        most_speedup=1 / serial if serial > 0 else None,
        projection=tuple(_point(size, larger, shares, spread) for larger in sizes),
    )


def _point(size: int, larger: int, shares: np.ndarray, spread: np.ndarray) -> ProjectedSpeedup:
    factor = larger / size
    # A bandwidth-bound ring, and one more level of a latency-bound tree for each doubling.
    ring = ((larger - 1) / larger) / ((size - 1) / size)
    tree = ring * (math.log2(larger) / math.log2(size))
    weak, strong = [], []
    for growth in (ring, tree):
        for part in (shares, *spread):
            weak.append(factor / (part[0] + part[1] * growth + part[2]))
            strong.append(1 / (part[0] / factor + part[1] * growth + part[2]))
    middle = len(weak) // 2  # growth tree, the mean shares
    return ProjectedSpeedup(
        larger,
        math.sqrt(weak[0] * weak[middle]),
        min(weak),
        max(weak),
        math.sqrt(strong[0] * strong[middle]),
        min(strong),
        max(strong),
    )


def _spread(recording: Recording, slowed_s: float) -> np.ndarray:
    """Shares (k, 3) at the edges of what resampled steps give: the 1 % and 99 % quantiles."""
    steps = [step for rank in recording.ranks for step in rank.steps if step.time_s > 0]
    if len(steps) < 3:
        return np.empty((0, 3))
    table = np.array(
        [
            [
                one.compute_s + one.io_s - slowed_s,
                one.exposed_s + slowed_s,
                one.other_s,
                one.time_s,
            ]
            for one in steps
        ]
    )
    generator = np.random.default_rng(0)
    # A few hundred steps drawn say as much as all of them, and cost nothing at 512 ranks.
    few = table[generator.integers(0, len(table), min(len(table), 1000))]
    chosen = few[generator.integers(0, len(few), (_RESAMPLES, len(few)))].sum(axis=1)
    shares = chosen[:, :3] / chosen[:, 3:]
    order = np.argsort(shares[:, 1])
    return shares[[order[_RESAMPLES // 100], order[-_RESAMPLES // 100 - 1]]]
