"""The interface that a reducer needs of an arena, and the parts that every arena has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hvd_ext.allreduce.operations import Array
    from hvd_ext.arena.inter_node import Channels
    from hvd_ext.arena.layout import Layout


class Arena(ABC):
    """Gradient memory of one layout, and the exchange of its buckets.

    Every rank makes it with the same layout. In each round, `ready` says which data is in place,
    `reduce` takes the buckets in their order, and after `finish` the results are there.
    `ready` may be called from another thread than the other two.

    Attributes:
        layout: what lies where.
        data: this rank's memory, `layout.total_bytes` of uint8, for `from_dlpack`.
    """

    layout: Layout
    data: Any
    _channels: Channels | None = None  # between the nodes, where there are several

    def enter_thread(self) -> None:  # noqa: B027 (any thread will do, for some)
        """Called first on each thread that calls `reduce`."""

    @abstractmethod
    def ready(self, index: int) -> None:
        """Say that this rank's gradients of the buckets up to `index` are there."""

    @abstractmethod
    def reduce(self, index: int) -> None:
        """Reduce this rank's shard of bucket `index`; buckets come in their order.

        On several nodes the shard is then on its way, and this returns.

        Raises:
            StallError: ranks of this node did not arrive in time, or ended. Ranks of
                other nodes are the watchdog's, which ends the job.
        """

    @abstractmethod
    def finish(self) -> None:
        """Wait until every rank has reduced its shard of every bucket.

        Raises:
            StallError: as `reduce` does.
        """

    @property
    @abstractmethod
    def shards(self) -> list[tuple[int, int]]:
        """The part [begin, end) of each bucket, in bytes, that this rank reduces."""

    def drain(self) -> list[Array | None]:
        """Sum the residuals, which are not sent yet, over the nodes; collective.

        Between two rounds. Each node keeps an equal part.

        Returns:
            The sums for this rank's shard of each bucket; None where nothing is kept.
        """
        if self._channels is None:
            return [None] * len(self.layout.buckets)
        with self._watched():
            return self._channels.drain()

    def keep(self, index: int, of_parameters: Mapping[int, Array]) -> None:
        """Make this node send its part of the drained residuals of bucket `index`.

        Args:
            index: number of the bucket.
            of_parameters: the sums of whole parameters, in the order of memory; other parameters
                have none.
        """
        if self._channels is not None:
            self._channels.keep(index, of_parameters)

    @abstractmethod
    def explain(self) -> str:
        """Say how buckets are reduced, and why."""

    @abstractmethod
    def close(self) -> None:
        """Stop the threads after the started work; the last reference frees the memory.

        To be called on the thread that calls `reduce`. Ranks of other nodes that are late for it
        are the watchdog's.
        """

    def hurry(self, within_s: float) -> bool:
        """End the job and name the late ranks if `close` takes longer than this.

        Returns:
            Whether the program, and MPI, must not end before `close` did.
        """
        return self._channels is not None and self._channels.hurry(within_s)

    def _watched(self) -> AbstractContextManager[None]:
        return nullcontext() if self._channels is None else self._channels.watched()
