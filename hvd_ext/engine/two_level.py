"""The collectives of a group whose ranks are on several nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hvd_ext.engine.collectives.all_gather import all_gather
from hvd_ext.engine.collectives.all_reduce import all_reduce
from hvd_ext.engine.collectives.all_to_all import all_to_all
from hvd_ext.engine.collectives.broadcast import broadcast
from hvd_ext.engine.collectives.levels import Levels
from hvd_ext.engine.collectives.reduce_scatter import reduce_scatter
from hvd_ext.job.watchdog import Watchdog

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.job.topology import Topology


class TwoLevel:
    """Collectives within each node by memory, and between the nodes by messages.

    Every rank calls them in the same order, and one at a time. Where ranks are late, the watchdog
    ends the job and names them.

    Attributes:
        name: of the algorithm, where a call does not return one.
    """

    name = "hierarchical"

    def __init__(self, topology: Topology, timeout_s: float, setting: str) -> None:
        """Make the memory and the communicators; collective over the group.

        Args:
            topology: the group's, of several nodes.
            timeout_s: how long a call may take before the job ends.
            setting: of that time, for errors.

        Raises:
            WindowError: on every rank, if those of some node cannot share memory.
        """
        self._levels = levels = Levels(topology)
        self._watchdog = Watchdog(
            topology, levels.watched, levels.uses, timeout_s, "a collective", setting
        )
        self.rank, self.size = levels.rank, levels.size

    def expect(self, name: str, limit_s: float) -> None:
        """The watchdog has the group's own limit."""

    def missing(self) -> Sequence[int]:
        """Nobody: the watchdog asks."""
        return ()

    def all_reduce(self, array: Array, dtype: str, operation: str, scale: float) -> str:
        """Reduce `array`, of the type that stores `dtype`, in place; returns the algorithm."""
        with self._watchdog.guard():
            return all_reduce(self._levels, array, dtype, operation, scale)

    def reduce_scatter(
        self, out: Array, own: Array, dtype: str, scale: float, operation: str = "sum"
    ) -> None:
        """Fill `out` with this rank's row of the reduction of `own`; both of that type."""
        with self._watchdog.guard():
            reduce_scatter(self._levels, out, own, dtype, operation, scale)

    def all_gather(self, out: Array, own: Array) -> None:
        """Fill `out` with every rank's `own`, in rank order."""
        with self._watchdog.guard():
            all_gather(self._levels, out, own)

    def broadcast(self, array: Array, root: int) -> None:
        """Give every rank what rank `root` of the group has."""
        with self._watchdog.guard():
            broadcast(self._levels, array, root)

    def all_to_all(
        self, out: Array, out_bytes: Sequence[int], own: Array, own_bytes: Sequence[int]
    ) -> None:
        """Give each rank its part of `own`, and fill `out` with what each gave; in rank order."""
        with self._watchdog.guard():
            all_to_all(self._levels, out, out_bytes, own, own_bytes)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        with self._watchdog.guard():
            self._levels.comm.Barrier()

    def abort(self) -> None:
        """MPI's calls cannot be ended: the watchdog ends the job, if it comes to that."""

    def close(self, finished: bool) -> None:
        """End the watchdog, and give back the communicators if nothing runs any more."""
        self._watchdog.close()
        self._levels.close(finished)
