"""The order of the samples: a function of only the seed and the position.

The samples of a run form an infinite sequence, whose positions count over all ranks. A step
takes the next `global_batch` positions, and each rank gets an equal, contiguous share of them. So
the sequence is the same for any number of ranks and any batch size, and an epoch has each sample
exactly once. A batch may end one epoch and begin the next. One integer is the resume point, on
any machine and any number of ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_ext.errors import UsageError


class Order:
    """The deterministic order of the samples of a run."""

    def __init__(self, samples: int, seed: int, *, shuffle: bool = True, data: str = "") -> None:
        """Describe an order.

        Args:
            samples: number of samples; each comes once an epoch.
            seed: seed of the order, the same on all ranks.
            shuffle: whether each epoch has its own order; otherwise all epochs have the order of
                the samples.
            data: fingerprint of the samples, so that a run does not resume with others.

        Raises:
            UsageError: there are no samples.
        """
        if samples < 1:
            raise UsageError(f"{samples} samples: there must be at least one")
        self.samples, self.seed, self.shuffle, self.data = samples, seed, shuffle, data
        self._epochs = lru_cache(maxsize=2)(self._epoch)

    def sample(self, position: int) -> int:
        """Return the sample at a position.

        Args:
            position: number of the sample in the run, from 0, over all epochs.

        Examples:
            >>> order = Order(samples=4, seed=1, shuffle=False)
            >>> order.sample(5)
            1
            >>> order.steps_left(position=5, global_batch=2)
            2
        """
        epoch, place = divmod(position, self.samples)
        return int(self._epochs(epoch)[place]) if self.shuffle else place

    def between(self, first: int, end: int) -> NDArray[np.int64]:
        """Return the samples at consecutive positions, `(end - first,)`.

        Args:
            first: first position.
            end: position after the last one.
        """
        parts = [
            (self._epochs(epoch) if self.shuffle else np.arange(self.samples))[
                max(0, first - epoch * self.samples) : end - epoch * self.samples
            ]
            for epoch in range(first // self.samples, -(-end // self.samples))
        ]
        return np.concatenate(parts)

    def rng(self, position: int) -> np.random.Generator:
        """Return the random numbers for augmenting the sample at a position, such as a crop.

        Args:
            position: number of the sample in the run.
        """
        epoch, place = divmod(position, self.samples)
        # NumPy pads a seed with zeros, so place + 1 makes it differ from the order's seed.
        return np.random.default_rng((self.seed, epoch, place + 1))

    def steps_left(self, position: int, global_batch: int) -> int:
        """Return the number of steps until the epoch's last sample is used; at least 1.

        Args:
            position: position of the next sample.
            global_batch: samples of a step on all ranks.
        """
        left = self.samples - position % self.samples
        return -(-left // global_batch)

    def state(self, position: int) -> dict[str, Any]:
        """Return the resume point as plain values, for a checkpoint.

        Args:
            position: position of the next sample.
        """
        return {"seed": self.seed, "position": position, "data": self.data}

    def resume(self, state: Mapping[str, Any]) -> int:
        """Return the position in a state.

        Args:
            state: returned by `state`.

        Raises:
            UsageError: it has another seed or other samples.
        """
        if state["seed"] != self.seed:
            raise UsageError(
                f"cannot resume: the order of samples had the seed {state['seed']}, now "
                f"{self.seed}: give the seed it was started with"
            )
        if state["data"] != self.data:
            raise UsageError(
                f"cannot resume: the samples were {state['data'][:12]}, now {self.data[:12]} "
                "(fingerprints): give the data it was started with"
            )
        return int(state["position"])

    def _epoch(self, epoch: int) -> NDArray[np.int64]:
        return np.random.default_rng((self.seed, epoch, 0)).permutation(self.samples)


def share(position: int, local_batch: int, rank: int) -> range:
    """Return the positions of a rank in the step at `position`.

    Args:
        position: position of the step's first sample.
        local_batch: samples of each rank.
        rank: number of the rank.

    Examples:
        >>> share(position=100, local_batch=4, rank=1)
        range(104, 108)
    """
    first = position + rank * local_batch
    return range(first, first + local_batch)


def fingerprint(*parts: object) -> str:
    """Return a digest of values; equal data have equal digests.

    Args:
        parts: values whose `repr` contains all of them.

    Examples:
        >>> fingerprint("images", 100) == fingerprint("images", 100)
        True
    """
    return hashlib.sha256(repr(parts).encode(errors="surrogateescape")).hexdigest()
