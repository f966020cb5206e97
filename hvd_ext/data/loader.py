"""Batches of a rank, read on threads while it trains."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hvd_ext.data.ahead import map_ahead
from hvd_ext.data.order import Order, share


class Dataset(Protocol):
    """What is loaded: a PackedFile, or anything else with samples by number."""

    def __getitem__(self, sample: int) -> Any:
        """A sample; it is called from several threads at once."""


@dataclass(frozen=True)
class Statistics:
    """What a loader has done so far, on this rank.

    Attributes:
        samples: handed out.
        wait_s: how long the caller waited for them.
        bytes_read: that the dataset took from its file, or None if it does not say.
    """

    samples: int
    wait_s: float
    bytes_read: int | None


class DataLoader:
    """An endless row of this rank's batches, in the order of a sampler.

    `for batch in loader` ends with the batch that has the epoch's last sample, `next(loader)`
    never does; both go on where the last one was handed out. Batches do not depend on the
    number of threads, nor, put together, on that of the ranks.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        sampler: Order,
        *,
        rank: int = 0,
        size: int = 1,
        transform: Callable[[Any, np.random.Generator], Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 4,
        prefetch_factor: int = 2,
    ) -> None:
        """Describe the batches; nothing is read before the first is asked for.

        Args:
            dataset: `dataset[i]` of each sample; what it raises is raised at its batch.
            batch_size: samples of this rank a step.
            sampler: which sample comes when.
            rank: of those that share a step.
            size: how many share it.
            transform: changes a sample, with random numbers of its position.
            collate_fn: makes a batch of samples, on the calling thread; None: `stack`.
            num_workers: threads that read and transform.
            prefetch_factor: batches that are read before they are asked for.
        """
        self.sampler, self.batch_size = sampler, batch_size
        self.global_batch = batch_size * size
        self._dataset, self._transform = dataset, transform
        self._collate = collate_fn or stack
        self._rank, self._workers, self._ahead = rank, num_workers, prefetch_factor
        self._position = self._samples = 0
        self._wait_s = 0.0
        self._batches: Iterator[list[Any]] | None = None

    def __len__(self) -> int:
        """Batches until the epoch ends."""
        return self.sampler.steps_left(self._position, self.global_batch)

    def __iter__(self) -> Iterator[Any]:
        """What is left of the epoch."""
        for _ in range(len(self)):
            yield next(self)

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            Exception: whatever the dataset or the transform raised for one of its samples.
        """
        began_s = time.perf_counter()
        if self._batches is None:
            steps = itertools.count(self._position, self.global_batch)
            positions = (share(first, self.batch_size, self._rank) for first in steps)
            self._batches = map_ahead(
                self._load, positions, workers=self._workers, ahead=self._ahead
            )
        samples = next(self._batches)
        self._wait_s += time.perf_counter() - began_s
        self._position += self.global_batch
        self._samples += len(samples)
        return self._collate(samples)

    def state_dict(self) -> dict[str, Any]:
        """Where the run is: behind the last batch that was handed out."""
        return self.sampler.state(self._position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on elsewhere, whatever the number of ranks and the batch were there.

        Raises:
            UsageError: the state is of another seed, or of other samples.
        """
        self.close()
        self._position = self.sampler.resume(state)

    def statistics(self) -> Statistics:
        """What was done so far."""
        bytes_read = getattr(self._dataset, "bytes_read", None)
        return Statistics(self._samples, self._wait_s, bytes_read)

    def close(self) -> None:
        """Forget what was read ahead, and end the threads; the next batch starts them anew."""
        if self._batches is not None:
            self._batches.close()  # type: ignore[attr-defined]
            self._batches = None

    def _load(self, position: int) -> Any:
        sample = self._dataset[self.sampler.sample(position)]
        if self._transform is None:
            return sample
        return self._transform(sample, self.sampler.rng(position))


def stack(samples: Sequence[Any]) -> Any:
    """A batch: arrays and numbers stacked along a new first dim, in dicts and tuples as they were.

    What has no numbers, such as bytes, becomes a list.
    """
    first = samples[0]
    if isinstance(first, Mapping):
        return {name: stack([sample[name] for sample in samples]) for name in first}
    if isinstance(first, tuple):
        return tuple(stack(part) for part in zip(*samples, strict=True))
    if isinstance(first, (np.ndarray, np.generic, int, float)):
        return np.stack(samples)
    return list(samples)
