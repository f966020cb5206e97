"""Collectives of memory that lies anywhere, through a window of the node's ranks, piece by piece.

Nothing is planned for an address or a length, so ranks whose allocators differ stay in step.
Pieces alternate between two places: a rank that is ready with one has read the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_ext.dtypes import DTYPES
from hvd_ext.job.stalls import StallMonitor
from hvd_ext.shm.layout import LINE_BYTES
from hvd_ext.shm.regions import on_every_rank
from hvd_ext.shm.window import NodeWindow
from hvd_ext.units import MIB

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.job.topology import Topology

# Short enough to be in the cache still when peers read it.
PIECE_BYTES = MIB


class Staged:
    """The collectives of one group's ranks, which are all of one node."""

    def __init__(self, topology: Topology, timeout_s: float) -> None:
        """Make the window; collective over the group.

        Args:
            topology: one node.
            timeout_s: how long ranks are waited for.

        Raises:
            WindowError: on every rank, if some cannot share memory.
        """
        self.rank, self.size = topology.world.rank, topology.world.size
        self._window = on_every_rank(topology, lambda: NodeWindow(topology.node, 2 * PIECE_BYTES))
        self._monitored: Callable[[Callable[[float], Any]], Any] = StallMonitor(
            *(topology.hosts_by_rank, topology.node_ranks(), timeout_s, "a collective")
        )
        self._memories = [
            np.frombuffer(self._window.peer(rank), np.uint8) for rank in range(self.size)
        ]
        self._ticket = 0

    def all_gather(self, out: Array, own: Array) -> None:
        """Have every rank hold what all of them have, in rank order.

        Args:
            out: uint8, `size` times as long as `own`.
            own: uint8, as long on every rank.

        Raises:
            StallError: ranks did not arrive in time, or ended.
        """
        rows = out.reshape(self.size, len(own))
        if not np.shares_memory(rows[self.rank], own):
            rows[self.rank][:] = own
        for begin in range(0, len(own), PIECE_BYTES):
            part = own[begin : begin + PIECE_BYTES]
            ticket, place = self._next()
            self._memories[self.rank][place : place + len(part)] = part
            self._monitored(functools.partial(self._window.meet, ticket))
            for rank in {*range(self.size)} - {self.rank}:
                row, memory = rows[rank], self._memories[rank]
                row[begin : begin + len(part)] = memory[place : place + len(part)]

    def reduce_scatter(
        self, out: Array, own: Array, dtype: str, scale: float, operation: str = "sum"
    ) -> None:
        """Have every rank hold its row of the reduction of what all of them have.

        Args:
            out: 1-D.
            own: 1-D, `size` times as long, the same on every rank.
            dtype: of what both hold, a key of DTYPES.
            scale: what every element of the result is multiplied by.
            operation: of the window's.

        Raises:
            StallError: ranks did not arrive in time, or ended.
        """
        item = DTYPES[dtype].item_bytes
        rows = own.reshape(self.size, len(out))
        most = PIECE_BYTES // self.size // LINE_BYTES * LINE_BYTES // item
        for begin in range(0, len(out), most):
            count = min(most, len(out) - begin)
            ticket, place = self._next()
            memory = self._memories[self.rank][place : place + self.size * most * item]
            memory.view(own.dtype).reshape(self.size, most)[:, :count] = rows[
                :, begin : begin + count
            ]
            at = place + self.rank * most * item
            exchange = self._window.plan(at, count, dtype, scale, local=False, operation=operation)
            # The whole row is this rank's.
            exchange.plan.begin, exchange.plan.count = 0, count
            self._monitored(functools.partial(self._window.reduce, exchange, ticket))
            summed = self._memories[self.rank][at : at + count * item]
            out[begin : begin + count] = summed.view(out.dtype)

    def _next(self) -> tuple[int, int]:
        """The next ticket, and where its piece lies."""
        self._ticket += 1
        return self._ticket, (self._ticket & 1) * PIECE_BYTES
