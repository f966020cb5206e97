"""Batches of a rank, read on threads while it trains."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from hvd_ext.data.ahead import in_order, then, threads
from hvd_ext.data.order import Order, share
from hvd_ext.data.store.store import MemoryStore, Records
from hvd_ext.errors import UsageError
from hvd_ext.system.process import allow_singleton_mpi

if TYPE_CHECKING:
    from mpi4py import MPI


class Dataset(Protocol):
    """The data to load: a PackedFile, or anything else with samples by number."""

    def __getitem__(self, sample: int) -> Any:
        """Return a sample; several threads call it at once."""


@dataclass(frozen=True)
class Statistics:
    """Counts and times of a loader so far, on this rank.

    Attributes:
        samples: samples returned.
        wait_s: how long the caller waited for them.
        bytes_read: bytes that the dataset read from its file, or None if it does not count them.
        bytes_sent: bytes of the store's samples that were sent to other nodes.
        bytes_received: bytes of samples that came from other nodes.
    """

    samples: int
    wait_s: float
    bytes_read: int | None
    bytes_sent: int = 0
    bytes_received: int = 0


class DataLoader:
    """An infinite iterator over this rank's batches, in the order of a sampler.

    `for batch in loader` ends with the batch that has the epoch's last sample, `next(loader)`
    never does; both continue after the last batch. Batches do not depend on the number of threads;
    the batches of all ranks together do not depend on the number of ranks.

    Attributes:
        store: in-memory cache of the samples, from `start` to `close`; None without one.
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
        store: Literal["memory"] | int | None = None,
        comm: MPI.Comm | None = None,
    ) -> None:
        """Describe the batches; nothing is read before the first is asked for.

        Args:
            dataset: returns each sample as `dataset[i]`; an error is raised at the sample's batch.
                If it has `announce(i)`, the loader calls it for all samples of a step before they
                are read. If it has `in_place_of(i, error)`, its result replaces a sample that a
                store could not read.
            batch_size: samples of this rank in a step.
            sampler: the order of the samples.
            rank: number among the ranks that share a step.
            size: number of these ranks.
            transform: changes a sample, with random numbers of its position.
            collate_fn: makes a batch of samples, on the calling thread; None: `stack`.
            num_workers: threads that read and transform.
            prefetch_factor: batches that are read before they are requested.
            store: "memory": each sample is read once, by the rank that needs it first, and kept in
                the memory of its node, from which it is sent to other nodes. A number: the bytes
                that this rank may keep; the default of "memory" is its part of 60 % of the free
                memory. Samples that do not fit are read again. The dataset must be a `Records`.
            comm: for a store, the ranks that share a step, in the order of `rank`; None: all.

        Raises:
            UsageError: the dataset cannot be kept in a store.
        """
        if store is not None and not hasattr(dataset, "record"):
            raise UsageError(
                f"store={store!r}: {type(dataset).__name__} has no records: use a packed file"
            )
        self.sampler, self.batch_size = sampler, batch_size
        self.global_batch = batch_size * size
        self._dataset, self._transform = dataset, transform
        self._collate = collate_fn or stack
        self._rank, self._workers, self._ahead = rank, num_workers, prefetch_factor
        self._position = self._samples = 0
        self._wait_s = 0.0
        self._batches: Iterator[list[Any]] | None = None
        self._budget, self._comm, self._size = store, comm, size
        self.store: MemoryStore | None = None
        self._exchanged = (0, 0)  # bytes sent and received by stores that are closed

    def __len__(self) -> int:
        """Return the number of batches until the epoch ends."""
        return self.sampler.steps_left(self._position, self.global_batch)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the remaining batches of the epoch."""
        for _ in range(len(self)):
            yield next(self)

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            Exception: any error of the dataset or the transform for one of its samples.
        """
        began_s = time.perf_counter()
        self.start()
        assert self._batches
        samples = next(self._batches)
        self._wait_s += time.perf_counter() - began_s
        self._position += self.global_batch
        self._samples += len(samples)
        return self._collate(samples)

    def start(self) -> None:
        """Reserve a store's memory, or leave that to the first `next`; with a store, a collective.

        Raises:
            HvdExtError: there is not enough memory.
        """
        if self._batches is None:
            if self._budget is not None:
                self.store = self._make_store(self._budget)
            self._pool = threads(self._workers)
            steps = itertools.count(self._position, self.global_batch)
            self._batches = in_order(map(self._begin, steps), self._ahead)

    def state_dict(self) -> dict[str, Any]:
        """Return the resume point, which is after the last batch that was returned."""
        return self.sampler.state(self._position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of any number of ranks and any batch size.

        A store is closed, and its samples are read again.

        Args:
            state: returned by `state_dict`.

        Raises:
            UsageError: the state has another seed or other samples.
        """
        self.close()
        self._position = self.sampler.resume(state)

    def statistics(self) -> Statistics:
        """The counts and times so far, of this rank."""
        bytes_read = getattr(self._dataset, "bytes_read", None)
        sent, received = self._exchanged
        if self.store:
            sent, received = sent + self.store.bytes_sent, received + self.store.bytes_received
        return Statistics(self._samples, self._wait_s, bytes_read, sent, received)

    def close(self) -> None:
        """Drop prefetched samples and end the threads; the next batch starts them again.

        Reads that have begun are finished, because other ranks may take part in them. With a store,
        a collective: samples that were sent ahead are received, and the store's memory is freed.
        """
        if self._batches is not None:
            self._pool.shutdown()
            self._batches = None
        if self.store:
            self.store.close()
            done = self.statistics()
            self._exchanged = (done.bytes_sent, done.bytes_received)
            self.store = None

    def _begin(self, first: int) -> list[Future[Any]]:
        """Begin to load this rank's samples of the step at position `first`."""
        positions = share(first, self.batch_size, self._rank)
        pool = self._pool
        if self.store is None:
            if announce := getattr(self._dataset, "announce", None):
                # The disk gets the whole step at once, and chooses the order. Errors are ignored
                # here, because reading the sample raises them.
                pool.submit(lambda: [announce(self.sampler.sample(p)) for p in positions])
            return [pool.submit(self._load, position) for position in positions]
        records = zip(positions, self.store.start(first, pool), strict=True)
        return [then(pool, record, partial(self._decode, position)) for position, record in records]

    def _load(self, position: int) -> Any:
        return self._transformed(position, self._dataset[self.sampler.sample(position)])

    def _decode(self, position: int, record: Future[NDArray[np.uint8]]) -> Any:
        number = self.sampler.sample(position)
        try:
            sample = cast(Records, self._dataset).decode(number, record.result())
        except UsageError as error:
            in_place_of = getattr(self._dataset, "in_place_of", None)
            if in_place_of is None:
                raise
            sample = in_place_of(number, error)
        return self._transformed(position, sample)

    def _transformed(self, position: int, sample: Any) -> Any:
        if self._transform is None:
            return sample
        return self._transform(sample, self.sampler.rng(position))

    def _make_store(self, budget: Literal["memory"] | int) -> MemoryStore:
        allow_singleton_mpi()
        from mpi4py import MPI

        comm = self._comm or MPI.COMM_WORLD
        if (comm.rank, comm.size) != (self._rank, self._size):
            raise UsageError(
                f"rank {self._rank} of {self._size} that share a step is rank {comm.rank} of the "
                f"{comm.size} that share a store: give the communicator of those that share a step"
            )
        return MemoryStore(
            cast(Records, self._dataset),
            self.sampler,
            self._position,
            self.batch_size,
            self._ahead,
            comm,
            None if budget == "memory" else budget,
        )


def stack(samples: Sequence[Any]) -> Any:
    """Make a batch: stack arrays and numbers along a new first dim, within dicts and tuples.

    Fields without numbers, such as bytes, become a list.
    """
    first = samples[0]
    if isinstance(first, Mapping):
        return {name: stack([sample[name] for sample in samples]) for name in first}
    if isinstance(first, tuple):
        return tuple(stack(part) for part in zip(*samples, strict=True))
    if isinstance(first, (np.ndarray, np.generic, int, float)):
        return np.stack(samples)
    return list(samples)
