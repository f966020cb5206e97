"""Timed comparisons: contenders take turns; medians and their spread; the machine."""

from __future__ import annotations

import os
import platform
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np


def interleave(
    contenders: Mapping[str, Callable[[], None]],
    rounds: int,
    timed: Callable[[Callable[[], None]], float],
    warm_up: int = 3,
) -> dict[str, list[float]]:
    """Time every contender once a round, so that what disturbs one disturbs all.

    Each round has another order, the same on all ranks: what went before leaves its marks on
    caches and queues.
    """
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(warm_up + rounds):
        for name in random.Random(number).sample(list(contenders), len(contenders)):
            time_s = timed(contenders[name])
            if number >= warm_up:
                samples[name].append(time_s)
    return samples


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Median and the middle half of a sample."""
    low, median, high = (float(q) for q in np.quantile(samples, (0.25, 0.5, 0.75)))
    return {"median": median, "low": low, "high": high, "n": len(samples)}


def ratio(peer: Sequence[float], ours: Sequence[float]) -> float:
    """How many times as fast as the peer we are, by medians."""
    return statistics.median(peer) / statistics.median(ours)


def machine() -> dict[str, Any]:
    """The facts of a machine and a run that a measurement depends on."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "date": date.today().isoformat(),
    }
