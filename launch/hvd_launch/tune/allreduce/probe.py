"""Does the library follow rules by message size? Some sizes get a slow algorithm, to see. Pure.

What a library's documentation says of its rules need not be so, and MPI_T tells of a variable at
most that it was read. So the choices are run as they are, and once more with the slowest
algorithm at some sizes: these, and only these, have to take longer.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from hvd_launch.backends.tuning import DEFAULT, Candidates
from hvd_launch.tune.allreduce.choice import Times

# How many times as long a slow algorithm has to take, to be told from noise.
_LEAST_RATIO = 2.0
# Pairs of jobs until the least times of both sides are believed.
LEAST_ROUNDS, MOST_ROUNDS = 2, 8


@dataclass(frozen=True)
class Probe:
    """Choices that are slow at some sizes on purpose.

    Attributes:
        choices: (least message_bytes, candidate), ascending from 0.
        slowed: how many times as long each of the slow sizes should take.
    """

    choices: tuple[tuple[int, str], ...]
    slowed: Mapping[int, float]


def plan(
    times: Times, candidates: Candidates, choices: tuple[tuple[int, str], ...]
) -> Probe | None:
    """The probe of these choices; None where no algorithm is slow enough to be seen.

    Slow are neighbouring sizes, and if possible neither the shortest nor the longest.
    """
    sizes = sorted(times[DEFAULT])
    chosen = {size: _at(choices, size) for size in sizes}
    slow: dict[int, str] = {}
    slowed: dict[int, float] = {}
    for size in sizes[1:-1] or sizes[-1:]:
        medians = {
            candidate.name: statistics.median(rounds.values())
            for candidate in candidates.all
            if candidate.rule is not None and (rounds := times.get(candidate.name, {}).get(size))
        }
        slowest = max(medians, key=medians.__getitem__)
        usual = times[chosen[size]][size]
        ratio = medians[slowest] / statistics.median(usual.values())
        if ratio >= _LEAST_RATIO:
            slow[size], slowed[size] = slowest, ratio
        elif slow:
            break
    if not slow:
        return None
    after = min((size for size in sizes if size > max(slow)), default=None)
    merged = [choice for choice in choices if choice[0] < min(slow)]
    merged += slow.items()
    if after is not None:
        merged.append((after, chosen[after]))
        merged += [choice for choice in choices if choice[0] > after]
    return Probe(tuple(_joined(merged)), slowed)


def ignored(probe: Probe, usual: Mapping[int, float], probed: Mapping[int, float]) -> list[int]:
    """The sizes at which the library did not do what the rules said.

    Args:
        probe: what was run.
        usual: the time of each size with the choices as they are.
        probed: the same with the probe's.
    """
    wrong = []
    for size, time in probed.items():
        expected = probe.slowed.get(size)
        bound = math.sqrt(expected or _LEAST_RATIO)
        if (time / usual[size] > bound) != (expected is not None):
            wrong.append(size)
    return wrong


def _at(choices: tuple[tuple[int, str], ...], size: int) -> str:
    return next(name for least, name in reversed(choices) if least <= size)


def _joined(choices: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Without choices that say the same as those before them."""
    pairs = zip([None, *(name for _, name in choices)], choices, strict=False)
    return [choice for before, choice in pairs if choice[1] != before]
