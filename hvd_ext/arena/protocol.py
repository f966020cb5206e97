"""The interface that a reducer needs of an arena, wherever its memory is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hvd_ext.allreduce.operations import Array
    from hvd_ext.arena.layout import Layout


class Arena(Protocol):
    """Gradient memory of one layout, and the exchange of its buckets.

    Every rank makes it with the same layout. In each round, `ready` says which data is in place,
    `reduce` takes the buckets in their order, and after `finish` the results are there.
    `ready` may be called from another thread than the other two.

    Attributes:
        layout: what lies where.
    """

    layout: Layout

    @property
    def data(self) -> Any:
        """This rank's memory, `layout.total_bytes` of uint8, for `from_dlpack`."""

    def enter_thread(self) -> None:
        """Called first on each thread that calls `reduce`."""

    def ready(self, index: int) -> None:
        """Say that this rank's gradients of the buckets up to `index` are there."""

    def reduce(self, index: int) -> None:
        """Reduce this rank's shard of bucket `index`; buckets come in their order.

        Raises:
            StallError: ranks did not arrive in time, or ended.
        """

    def finish(self) -> None:
        """Wait until every rank has reduced its shard of every bucket.

        Raises:
            StallError: as `reduce` does.
        """

    @property
    def shards(self) -> list[tuple[int, int]]:
        """The part [begin, end) of each bucket, in bytes, that this rank reduces."""

    def drain(self) -> list[Array | None]:
        """Sum over the nodes what was rounded away and not sent yet; collective.

        Between two rounds. Each node keeps an equal part.

        Returns:
            The sums for this rank's shard of each bucket; None where nothing is kept.
        """

    def keep(self, index: int, of_parameters: Mapping[int, Array]) -> None:
        """Have this node send its part of what was drained, for bucket `index`.

        Args:
            index: of the bucket.
            of_parameters: the sums, whole and in the order of memory; of others there is none.
        """

    def explain(self) -> str:
        """Say how buckets are reduced, and why."""

    def close(self) -> None:
        """Stop the threads, after what was started; the memory goes with the last reference.

        To be called on the thread that calls `reduce`.
        """

    def hurry(self, within_s: float) -> bool:
        """Have the job ended, and who is late named, where `close` takes longer than this.

        Returns:
            Whether the program must not end before `close` did.
        """
