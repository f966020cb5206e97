"""hvd_ext's private communicators of a topology: made when needed, reused, freed together.

The number of communicators of an MPI library is bounded (MPICH: 2,048), so users borrow them for a
while. Making, lending and freeing are collective and happen in the same order on every rank.
Returning is not: the garbage collector may do it, at a different time on each rank. A communicator
is therefore lent again only when every rank has returned it, and freed only when all ranks have
reached `close`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.job.abandoned import abandon
from hvd_ext.job.waiting import until

if TYPE_CHECKING:
    from mpi4py import MPI

log = logging.getLogger("hvd_ext")


class Lease:
    """Communicators that were borrowed.

    Attributes:
        comms: only the borrower uses them until they are returned.
        uses: how often they were lent, the same number on every rank.
    """

    def __init__(self, purpose: str, comms: tuple[MPI.Comm, ...]) -> None:
        self.purpose = purpose
        self.comms = comms
        self.uses = 1
        self.idle = False

    def give_back(self) -> None:
        """Return them for reuse; this rank must have no message in flight in them."""
        self.idle = True


class Communicators:
    """The communicators of one job."""

    def __init__(self, world: MPI.Comm) -> None:
        self._world = world
        self._leases: list[Lease] = []

    def borrow(self, purpose: str, *parents: MPI.Comm) -> Lease:
        """Borrow private copies of `parents`; collective over the world.

        Args:
            purpose: part of their name; the same for the same parents.
            parents: communicators that this rank is part of.
        """
        mine = {
            index
            for index, lease in enumerate(self._leases)
            if lease.idle and lease.purpose == purpose
        }
        everyones = set.intersection(*self._world.allgather(mine))
        if everyones:
            lease = self._leases[min(everyones)]
            lease.idle = False
            lease.uses += 1
            return lease
        comms = tuple(parent.Dup() for parent in parents)
        for index, comm in enumerate(comms):
            comm.Set_name(f"hvd_ext.{purpose}{index if len(comms) > 1 else ''}")
        self._leases.append(Lease(purpose, comms))
        return self._leases[-1]

    def close(self, timeout_s: float) -> bool:
        """Free the communicators that every rank has returned, if all ranks arrive; collective.

        Returns:
            False if ranks did not arrive in time: a peer may still be in any of them, and
            they are left to MPI_Finalize.
        """
        from mpi4py import MPI

        idle = np.array([True, *(lease.idle for lease in self._leases)], np.uint8)
        idle_everywhere = np.empty_like(idle)
        request = self._world.Iallreduce(idle, idle_everywhere, MPI.MIN)
        if not until(request.Test, timeout_s):
            log.info("hvd_ext: communicators are not freed, as ranks are still running")
            abandon([request], idle, idle_everywhere)
            return False
        for lease, free in zip(self._leases, idle_everywhere[1:], strict=True):
            if free:
                for comm in lease.comms:
                    comm.Free()
        self._leases.clear()
        return True
