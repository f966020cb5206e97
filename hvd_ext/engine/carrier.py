"""The interface of the engine: the collectives of a group of ranks, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hvd_ext.shm.block import Block


class Carrier(Protocol):
    """The collectives of one group, in memory.

    Every rank calls them in the same order, and one at a time.

    Attributes:
        name: name of the algorithm, if a call does not return one.
        rank, size: number in the group, and number of ranks.
    """

    name: str
    rank: int
    size: int

    def expect(self, name: str, limit_s: float, about: int) -> None:
        """Note the bytes, the time limit and the number of the next call, for `describe`."""

    def refuse(self, why: str) -> None:
        """Skip the next call on this rank alone, and report the reason to the others."""

    def fail(self, why: str) -> None:
        """Skip all calls from now on, and report the reason to the others."""

    def missing(self) -> Sequence[int]:
        """Return the global ranks that the running call waits for, if known."""

    def all_reduce(self, block: Block, dtype: str, operation: str, scale: float) -> str:
        """Reduce a block of elements of `dtype` in place; returns the algorithm."""

    def reduce_scatter(
        self, out: Block, own: Block, dtype: str, scale: float, operation: str
    ) -> None:
        """Reduce `own` over all ranks, and write this rank's row to `out`; both of `dtype`."""

    def all_gather(self, out: Block, own: Block) -> None:
        """Gather every rank's `own` into `out`, in rank order."""

    def all_gather_rows(self, rows: Sequence[Block], own: Block) -> None:
        """Gather every rank's `own` into `rows`."""

    def broadcast(self, block: Block, root: int) -> None:
        """Copy the block of rank `root` of the group to every rank."""

    def all_to_all(self, outs: Sequence[Block], owns: Sequence[Block]) -> None:
        """Send each rank one of `owns`, and receive each rank's block into `outs`."""

    def barrier(self) -> None:
        """Wait until every rank is here."""

    def abort(self) -> None:
        """Make the running call fail, if that is possible."""

    def close(self, finished: bool) -> None:
        """Return memory and communicators for reuse.

        Args:
            finished: whether all calls have ended.
        """
