"""The collectives of a group whose ranks are on several nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

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
        rank, size: in the group.
    """

    def __init__(self, topology: Topology, timeout_s: float, setting: str) -> None:
        """Make the memory and the communicators; collective over the group.

        Args:
            topology: the group's. On one node every rank counts as a node, for what is asked of
                ranks that cannot share memory.
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
        self.all_gather_rows(out.reshape(self.size, len(own)), own)

    def all_gather_rows(self, rows: Sequence[Array] | Array, own: Array) -> None:
        """Fill `rows` with every rank's `own`."""
        with self._watchdog.guard():
            all_gather(self._levels, rows, own)

    def broadcast(self, array: Array, root: int) -> None:
        """Give every rank what rank `root` of the group has."""
        with self._watchdog.guard():
            broadcast(self._levels, array, root)

    def all_to_all(self, outs: Sequence[Array], owns: Sequence[Array]) -> None:
        """Give each rank one of `owns`, and fill `outs` with what each gave."""
        with self._watchdog.guard():
            all_to_all(self._levels, outs, owns)

    def sum_of(self, number: int) -> int:
        """The sum of what all ranks have, modulo 2^64; they meet by that."""
        from mpi4py import MPI

        found = np.empty(1, np.uint64)
        with self._watchdog.guard():
            self._levels.comm.Allreduce(np.array([number], np.uint64), found, MPI.SUM)
        return int(found[0])

    def barrier(self) -> None:
        """Wait until every rank is here."""
        with self._watchdog.guard():
            self._levels.comm.Barrier()

    def close(self, finished: bool) -> None:
        """End the watchdog, and give back the communicators if nothing runs any more."""
        self._watchdog.close()
        self._levels.close(finished)
