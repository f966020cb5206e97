"""The choice of the most promising settings from measured times. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hvd_ext.arithmetic.statistics import Interval, from_logs, gain, lasting
from hvd_launch.backends.tuning import DEFAULT, Candidates

# us by candidate, then by message_bytes, then by round.
Times = Mapping[str, Mapping[int, Mapping[int, float]]]
# A candidate that takes this many times as long as the best is measured only once.
HOPELESS = 3.0


@dataclass(frozen=True, slots=True)
class Proposal:
    """A choice to compare with the library's default.

    Attributes:
        choices: (least message_bytes, candidate), ascending from 0.
        expected: speedup over the library's default, geometric mean over the sizes.
    """

    choices: tuple[tuple[int, str], ...]
    expected: float

    @property
    def single(self) -> str | None:
        """Return the one candidate for all sizes, if there is one."""
        return self.choices[0][1] if len(self.choices) == 1 else None


def compare(times: Times, base: str, name: str, message_bytes: int) -> Interval | None:
    """Return the gain of a candidate at one size, from rounds in which both were measured."""
    before = times.get(base, {}).get(message_bytes, {})
    after = times.get(name, {}).get(message_bytes, {})
    rounds = sorted(before.keys() & after.keys())
    if len(rounds) < 2:
        return None
    return gain([before[r] for r in rounds], [after[r] for r in rounds])


def choose(times: Times, candidates: Candidates, mixed: bool) -> Proposal:
    """Return the most promising proposal; the library's default if none promises a gain.

    Args:
        times: the measured times.
        candidates: the library's candidates.
        mixed: whether sizes may have different candidates.
    """
    sizes = sorted(times[DEFAULT])
    proposals = [Proposal(((0, DEFAULT),), 1.0)]
    for candidate in candidates.all[1:]:
        if mixed and candidate.rule is not None:
            continue  # rules by size express the same, and do not change the shortest messages
        expected = _expected(times, dict.fromkeys(sizes, candidate.name))
        if expected is not None and expected.gained:
            proposals.append(Proposal(((0, candidate.name),), expected.estimate))
    if mixed:
        by_size = _by_size(times, candidates, sizes)
        expected = _expected(times, by_size)
        if expected is not None and set(by_size.values()) != {candidates.base}:
            shortest = candidates.base or by_size[sizes[0]]
            proposals.append(Proposal(_merged(by_size, shortest), expected.estimate))
    return max(proposals, key=lambda proposal: proposal.expected)


def hopeless(times: Times, name: str, message_bytes: int) -> bool:
    """Whether a candidate was so slow at a size that it need not be measured again."""
    mine = times.get(name, {}).get(message_bytes, {})
    others = [us for by_size in times.values() for us in by_size.get(message_bytes, {}).values()]
    return bool(mine) and min(mine.values()) > HOPELESS * min(others)


def _by_size(times: Times, candidates: Candidates, sizes: list[int]) -> dict[int, str]:
    """Return for each size the fastest candidate that beat the base there and at the next sizes.

    Without a base, if none beat the library's own choice, it is the fastest of all.
    """
    names = [candidate.name for candidate in candidates.all if candidate.rule is not None]
    gains = [
        {
            name: found
            for name in names
            if (found := compare(times, candidates.base or DEFAULT, name, size)) is not None
        }
        for size in sizes
    ]
    return {
        size: max(
            left, key=left.__getitem__, default=candidates.base or _fastest(times, names, size)
        )
        for size, left in zip(sizes, lasting(gains), strict=True)
    }


def _fastest(times: Times, names: Sequence[str], size: int) -> str:
    medians = {
        name: statistics.median(times[name][size].values())
        for name in names
        if times.get(name, {}).get(size)
    }
    return min(medians, key=medians.__getitem__)


def _expected(times: Times, by_size: Mapping[int, str]) -> Interval | None:
    """Return the speedup over the default, by round; None if a size was abandoned."""
    before = [times[DEFAULT][size] for size in by_size]
    after = [times.get(name, {}).get(size, {}) for size, name in by_size.items()]
    rounds = sorted(set.intersection(*(set(by_round) for by_round in (*before, *after))))
    if len(rounds) < 2:
        return None
    return from_logs(
        [
            statistics.fmean(
                math.log(b[number] / a[number]) for b, a in zip(before, after, strict=True)
            )
            for number in rounds
        ]
    )


def _merged(by_size: Mapping[int, str], shortest: str) -> tuple[tuple[int, str], ...]:
    """Merge neighbors with equal choices; messages below the measured sizes get `shortest`."""
    merged = [(0, shortest)]
    for size, name in sorted(by_size.items()):
        if merged[-1][1] != name:
            merged.append((size, name))
    return tuple(merged)
