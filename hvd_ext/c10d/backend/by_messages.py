"""A group of several nodes, or of ranks that cannot share memory: MPI's messages.

Allreduce goes by the algorithm that the table names. A thread watches the calls: MPI blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.allreduce.agreed import read_table
from hvd_ext.allreduce.algorithms import NATIVE, SHARED_MEMORY
from hvd_ext.allreduce.operations import find_operation
from hvd_ext.allreduce.prepare import prepare
from hvd_ext.c10d.backend.carrier import SETTING
from hvd_ext.dtypes import DTYPES
from hvd_ext.job.watchdog import Watchdog

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.job.topology import Topology


class ByMessages:
    """A Carrier by MPI, on communicators for this group alone."""

    name = "native"

    def __init__(self, topology: Topology, timeout_s: float) -> None:
        """Make the communicators; collective over the group.

        Args:
            topology: the group's.
            timeout_s: how long a call may take before the job ends.
        """
        from mpi4py import MPI

        world = topology.world
        self._lease = topology.borrow("c10d_messages", world, world)
        self._comm, watched = self._lease.comms
        self._watchdog = Watchdog(
            topology, watched, self._lease.uses, timeout_s, "a collective", SETTING
        )
        self._table = read_table(world)
        # The largest node's count, so that all ranks choose alike.
        self._ranks_per_node = world.allreduce(topology.node.size, MPI.MAX)
        self._nodes = topology.nodes
        self.rank, self.size = world.rank, world.size

    def expect(self, name: str, limit_s: float) -> None:
        """The watchdog has the group's own limit."""

    def missing(self) -> Sequence[int]:
        return ()

    def all_reduce(self, array: Array, dtype: str, operation: str, scale: float) -> str:
        chosen = self._table.choose(
            *(self._nodes, self._ranks_per_node, "host", array.nbytes, DTYPES[dtype].dtype_class)
        )
        if chosen == SHARED_MEMORY:
            chosen = NATIVE
        # The only scale is that of an average, which `prepare` takes before it rounds.
        name = operation if scale == 1.0 else "average"
        with self._watchdog.guard():
            prepare(chosen, self._comm, array, find_operation(name), dtype)()
        return chosen

    def reduce_scatter(
        self, out: Array, own: Array, dtype: str, scale: float, operation: str
    ) -> None:
        whole = own.copy()
        self.all_reduce(whole, dtype, operation, scale)
        out[:] = whole[self.rank * len(out) : (self.rank + 1) * len(out)]

    def all_gather(self, out: Array, own: Array) -> None:
        with self._watchdog.guard():
            self._comm.Allgather(own, out)

    def broadcast(self, array: Array, root: int) -> None:
        with self._watchdog.guard():
            self._comm.Bcast(array, root)

    def all_to_all(
        self, out: Array, out_bytes: Sequence[int], own: Array, own_bytes: Sequence[int]
    ) -> None:
        with self._watchdog.guard():
            self._comm.Alltoallv(
                *(
                    (array, (counts, _starts(counts)))
                    for array, counts in ((own, own_bytes), (out, out_bytes))
                )
            )

    def barrier(self) -> None:
        with self._watchdog.guard():
            self._comm.Barrier()

    def abort(self) -> None:
        """MPI's calls cannot be ended: the watchdog ends the job, if it comes to that."""

    def close(self, finished: bool) -> None:
        self._watchdog.close()
        if finished:
            self._lease.give_back()


def _starts(counts: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(counts)[:-1].tolist()]
