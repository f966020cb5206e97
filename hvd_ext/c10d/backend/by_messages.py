"""A group of several nodes, or of ranks that cannot share memory: MPI's messages.

Allreduce goes by the algorithm that the table names. A thread watches the calls: MPI blocks.

MPI does not compare what its ranks call. So each collective begins with an allreduce of a few
numbers, which takes as long as the shortest message: where ranks are in different collectives, or
one has failed, all of them know before anything is sent.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.allreduce.agreed import read_table
from hvd_ext.allreduce.algorithms import NATIVE, SHARED_MEMORY
from hvd_ext.allreduce.operations import find_operation
from hvd_ext.allreduce.prepare import prepare
from hvd_ext.c10d import collectives
from hvd_ext.c10d.backend.carrier import SETTING
from hvd_ext.c10d.backend.in_node import check_bytes
from hvd_ext.dtypes import DTYPES
from hvd_ext.errors import HvdExtError
from hvd_ext.job.watchdog import Watchdog

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.job.topology import Topology

_TEXT_BYTES = 512


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
        self._nodes, self._ranks = topology.nodes, topology.ranks
        self._hosts = topology.hosts_by_rank
        self.rank, self.size = world.rank, world.size
        self._name, self._about = "", 0
        self._largest = MPI.MAX
        self._parted = False  # all ranks know that they are out of step

    def expect(self, name: str, limit_s: float, about: int) -> None:
        """Note the next call; the watchdog has the group's own limit."""
        self._name, self._about = name, about

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
        reduce = prepare(chosen, self._comm, array, find_operation(name), dtype)
        self._meet("all_reduce", array.nbytes)
        with self._watchdog.guard():
            reduce()
        return chosen

    def reduce_scatter(
        self, out: Array, own: Array, dtype: str, scale: float, operation: str
    ) -> None:
        whole = own.copy()
        self.all_reduce(whole, dtype, operation, scale)
        out[:] = whole[self.rank * len(out) : (self.rank + 1) * len(out)]

    def all_gather(self, out: Array, own: Array) -> None:
        self._meet("all_gather", own.nbytes)
        with self._watchdog.guard():
            self._comm.Allgather(own, out)

    def all_gather_rows(self, rows: Sequence[Array], own: Array) -> None:
        whole = np.empty((self.size, len(own)), np.uint8)
        self.all_gather(whole, own)
        for row, found in zip(rows, whole, strict=True):
            row[:] = found

    def broadcast(self, array: Array, root: int) -> None:
        self._meet("broadcast", array.nbytes)
        with self._watchdog.guard():
            self._comm.Bcast(array, root)

    def all_to_all(self, outs: Sequence[Array], owns: Sequence[Array]) -> None:
        self._meet("all_to_all", 0)
        mine = np.array([[len(own) for own in owns], [len(out) for out in outs]], np.int64)
        every = np.empty((self.size, *mine.shape), np.int64)
        with self._watchdog.guard():
            self._comm.Allgather(mine, every)
            check_bytes(self._name, every[:, 0], every[:, 1].T, self._ranks)
            # Straight from and to where the parts lie, which one call of MPI's cannot.
            requests = [self._comm.Irecv(out, rank) for rank, out in enumerate(outs) if len(out)]
            requests += [self._comm.Isend(own, rank) for rank, own in enumerate(owns) if len(own)]
            for request in requests:
                request.Wait()

    def barrier(self) -> None:
        self._meet("barrier", 0)

    def refuse(self, why: str) -> None:
        """Take part in the next comparison with what no other rank has."""
        self._compare(0, collectives.FAILED, why)

    def fail(self, why: str) -> None:
        """The same, not on this thread: other ranks may come late, or never."""
        if not self._parted:
            self._parted = True
            threading.Thread(target=self._tell, args=(why,), daemon=True).start()

    def _tell(self, why: str) -> None:
        with suppress(HvdExtError):  # this rank's own
            self.refuse(why)

    def _meet(self, step: str, count_bytes: int) -> None:
        about = self._about | collectives.step(step)
        self._compare(count_bytes, about, collectives.describe(count_bytes, about, self._ranks))

    def _compare(self, count_bytes: int, about: int, text: str) -> None:
        """Wait until all ranks have come, for the same collective.

        Raises:
            MismatchError: on every rank, if they are in different ones.
            HvdExtError: likewise, if one has failed.
        """
        own = np.array([count_bytes, about], np.uint64)
        both = np.concatenate([own, ~own])
        with self._watchdog.guard():
            self._comm.Allreduce(both.copy(), both, self._largest)
            if (both[:2] == ~both[2:]).all():
                return
            texts = np.zeros((self.size, _TEXT_BYTES), np.uint8)
            said = text.encode()[:_TEXT_BYTES]
            texts[self.rank, : len(said)] = np.frombuffer(said, np.uint8)
            failed = np.zeros(self.size, bool)
            self._comm.Allgather(texts[self.rank].copy(), texts)
            self._comm.Allgather(np.array([about == collectives.FAILED]), failed)
        self._parted = True
        words = [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in texts]
        if late := np.flatnonzero(failed).tolist():
            raise HvdExtError(collectives.failed(self._name, words.__getitem__, self._ranks, late))
        raise collectives.differ(words, self._ranks, self._hosts)

    def abort(self) -> None:
        """MPI's calls cannot be ended: the watchdog ends the job, if it comes to that."""

    def close(self, finished: bool) -> None:
        self._watchdog.close()
        if finished:
            self._lease.give_back()
