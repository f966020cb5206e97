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
        name: of the algorithm, where a call does not return one.
        rank, size: in the group.
    """

    name: str
    rank: int
    size: int

    def expect(self, name: str, limit_s: float, about: int) -> None:
        """Note what the next call is, how long it may take, and its number, for `describe`."""

    def refuse(self, why: str) -> None:
        """Skip the next call on this rank alone, and report the reason to the others."""

    def fail(self, why: str) -> None:
        """Skip all calls from now on, and report the reason to the others."""

    def missing(self) -> Sequence[int]:
        """Global ranks that the running call waits for, as far as that is known."""

    def all_reduce(self, block: Block, dtype: str, operation: str, scale: float) -> str:
        """Reduce a block of elements of `dtype` in place; returns the algorithm."""

    def reduce_scatter(
        self, out: Block, own: Block, dtype: str, scale: float, operation: str
    ) -> None:
        """Have `out` hold this rank's row of the reduction of `own`, both of `dtype`."""

    def all_gather(self, out: Block, own: Block) -> None:
        """Have `out` hold every rank's `own`, in rank order."""

    def all_gather_rows(self, rows: Sequence[Block], own: Block) -> None:
        """Have `rows` hold every rank's `own`."""

    def broadcast(self, block: Block, root: int) -> None:
        """Have every rank hold what rank `root` of the group does."""

    def all_to_all(self, outs: Sequence[Block], owns: Sequence[Block]) -> None:
        """Give each rank one of `owns`, and have `outs` hold what each gave."""

    def barrier(self) -> None:
        """Wait until every rank is here."""

    def abort(self) -> None:
        """Have the running call fail, where that is possible."""

    def close(self, finished: bool) -> None:
        """Give back what others may use.

        Args:
            finished: nothing runs any more.
        """
