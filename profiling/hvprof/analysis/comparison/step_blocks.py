"""The steps of a run in consecutive blocks, which are the samples of a comparison."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvprof.analysis.summary import BLOCKS
from hvprof.model import Recording

# A step is slow if it takes this multiple of the median.
_SLOW = 1.5


@dataclass(frozen=True, slots=True)
class StepBlocks:
    """The last 1024 steps of a run, without its warm-up, in at most 20 consecutive blocks.

    Attributes:
        steps: number of steps of each block.
        time_s: time of a block's steps, mean over the ranks.
        exposed_s: the part of it blocked on communication.
        warm_up: number of leading steps that are left out.
    """

    steps: tuple[int, ...]
    time_s: tuple[float, ...]
    exposed_s: tuple[float, ...]
    warm_up: int

    @property
    def count(self) -> int:
        """Number of steps in all blocks."""
        return sum(self.steps)


def step_blocks(recording: Recording) -> StepBlocks | None:
    """Return the steps that all ranks with steps recorded; None if there are none."""
    ranks = [{step.index: step for step in rank.steps} for rank in recording.ranks if rank.steps]
    if not ranks:
        return None
    common = sorted(set.intersection(*map(set, ranks)))
    times_s, exposed_s = (
        np.array([[getattr(steps[index], name) for index in common] for steps in ranks])
        .reshape(len(ranks), -1)
        .mean(axis=0)
        for name in ("time_s", "exposed_s")
    )
    warm_up = _warm_up(times_s) if common[:1] == [0] else 0
    if times_s[warm_up:].sum() <= 0:
        return None
    blocks = np.array_split(np.arange(warm_up, len(common)), min(BLOCKS, len(common) - warm_up))
    return StepBlocks(
        steps=tuple(len(block) for block in blocks),
        time_s=tuple(float(times_s[block].sum()) for block in blocks),
        exposed_s=tuple(float(exposed_s[block].sum()) for block in blocks),
        warm_up=warm_up,
    )


def _warm_up(times_s: NDArray[np.float64]) -> int:
    """Count the steps up to the first quarter's last slow one, or more if all are slow so far.

    At least the first step, at most half of all. Usual steps may come before slow ones, because
    buckets are laid out again after a few steps.
    """
    most = len(times_s) // 2
    slow = times_s[:most] > _SLOW * np.median(times_s)
    usual = np.flatnonzero(~slow)
    leading = int(usual[0]) if len(usual) else most
    early = np.flatnonzero(slow[: -(-len(times_s) // 4)])
    return min(most, max(1, leading, int(early[-1]) + 1 if len(early) else 0))
