"""The interfaces to whatever carries collectives, and sends and receives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from hvd_ext.allreduce.operations import Array
    from hvd_ext.c10d.backend.work import Work

# What to raise where ranks are late.
SETTING = "the timeout of the process group"


class Carrier(Protocol):
    """The collectives of one group, in memory. Arrays are 1-D, and of uint8 unless said otherwise.

    Every rank calls them in the same order, and one at a time.

    Attributes:
        name: of the algorithm, where a call does not return one.
    """

    name: str

    def expect(self, name: str, limit_s: float, about: int) -> None:
        """Note what the next call is, how long it may take, and its number in `collectives`."""

    def refuse(self, why: str) -> None:
        """Skip the next call on this rank alone, and report the reason to the others."""

    def fail(self, why: str) -> None:
        """Skip all calls from now on, and report the reason to the others."""

    def missing(self) -> Sequence[int]:
        """Global ranks that the running call waits for, as far as that is known."""

    def all_reduce(self, array: Array, dtype: str, operation: str, scale: float) -> str:
        """Reduce `array`, of the type that stores `dtype`, in place; returns the algorithm."""

    def reduce_scatter(
        self, out: Array, own: Array, dtype: str, scale: float, operation: str
    ) -> None:
        """Have `out` hold this rank's row of the reduction of `own`; both of that type."""

    def all_gather(self, out: Array, own: Array) -> None:
        """Have `out` hold every rank's `own`, in rank order."""

    def all_gather_rows(self, rows: Sequence[Array], own: Array) -> None:
        """Have `rows` hold every rank's `own`."""

    def broadcast(self, array: Array, root: int) -> None:
        """Have every rank hold what rank `root` of the group does."""

    def all_to_all(self, outs: Sequence[Array], owns: Sequence[Array]) -> None:
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


class PointToPoint(Protocol):
    """The sends and receives of one group, in any order."""

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> Work:
        """Begin to send a tensor to a rank of the group."""

    def receive(self, tensor: torch.Tensor, peer: int | None, tag: int) -> Work:
        """Begin to receive a tensor from a rank of the group; None: from any."""

    def meet(self, limit_s: float) -> None:
        """Wait until every rank is here, or raise an error that names those that are not."""

    def close(self) -> None:
        """Give up what is under way still."""
