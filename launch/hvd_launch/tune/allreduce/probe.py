"""A test whether the library follows rules by message size, with a slow algorithm. Pure.

A library may ignore its documented rules, and MPI_T reports at most that a variable was read. So
three kinds of jobs are interleaved: with the choices, with a slow algorithm forced at all sizes,
and with rules that name the slow algorithm at some sizes. These sizes must take as long as when it
is forced, and all others as long as with the choices.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hvd_launch.backends.tuning import DEFAULT, Candidates
from hvd_launch.tune.allreduce.choice import Times

# How many times as long the slow algorithm must take for a size to count.
_TELLING = 1.5
# Turns until the minimum times count as reliable.
LEAST_ROUNDS, MOST_ROUNDS = 2, 6
Choices = tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Probe:
    """Choices that are deliberately slow at some sizes.

    Attributes:
        slow: the slow candidate.
        sizes: the sizes for which it is named, if possible neither the shortest nor the longest.
        choices: (least message_bytes, candidate), ascending from 0.
    """

    slow: str
    sizes: tuple[int, ...]
    choices: Choices


def plan(times: Times, candidates: Candidates, choices: Choices) -> Probe | None:
    """Make the probe of these choices; None if no algorithm is slow enough to be noticed."""
    every = sorted(times[DEFAULT])
    sizes = tuple(every[1:-1] or every[-1:])
    ratios = {
        candidate.name: _slower(times, candidate.name, choices, sizes)
        for candidate in candidates.all
        if candidate.rule is not None and all(times.get(candidate.name, {}).get(s) for s in sizes)
    }
    slow = max(ratios, key=ratios.__getitem__, default=None)
    if slow is None or ratios[slow] < _TELLING:
        return None
    made = [choice for choice in choices if choice[0] < sizes[0]]
    made.append((sizes[0], slow))
    if after := every[every.index(sizes[-1]) + 1 :]:
        made.append((after[0], _at(choices, after[0])))
        made += [choice for choice in choices if choice[0] > after[0]]
    return Probe(slow, sizes, tuple(made))


def ignored(
    probe: Probe,
    usual: Mapping[int, float],
    forced: Mapping[int, float],
    probed: Mapping[int, float],
) -> list[int]:
    """Return the sizes at which the library did not follow the rules.

    Args:
        probe: the probe that was run.
        usual: the time of each size with the choices.
        forced: the time with the slow candidate.
        probed: the time with the probe's choices.
    """
    wrong = []
    for size, time in probed.items():
        as_forced = time > math.sqrt(usual[size] * forced[size])
        if forced[size] >= _TELLING * usual[size] and as_forced != (size in probe.sizes):
            wrong.append(size)
    return wrong


def _slower(times: Times, name: str, choices: Choices, sizes: Sequence[int]) -> float:
    """Return how many times as long a candidate takes as the choices: geometric mean."""
    logs = [
        math.log(min(times[name][s].values()) / min(times[_at(choices, s)][s].values()))
        for s in sizes
    ]
    return math.exp(statistics.fmean(logs))


def _at(choices: Choices, size: int) -> str:
    return next(name for least, name in reversed(choices) if least <= size)
