"""Collectives of memory that lies anywhere, through a window of the node's ranks, piece by piece.

Nothing is planned for an address or a length, so ranks whose allocators differ stay in step.
Pieces alternate between two places: a rank that is ready with one has read the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from hvd_ext.c10d import collectives
from hvd_ext.dtypes import DTYPES
from hvd_ext.errors import HvdExtError
from hvd_ext.job.stalls import StallMonitor
from hvd_ext.shm.layout import LINE_BYTES
from hvd_ext.shm.regions import on_every_rank
from hvd_ext.shm.window import (
    FOREVER,
    CollectivesDifferError,
    NodeWindow,
    PeersFailedError,
)
from hvd_ext.units import MIB

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.job.topology import Topology

T = TypeVar("T")
# Short enough to be in the cache still when peers read it.
PIECE_BYTES = MIB
_ALL_GATHER, _REDUCE_SCATTER = map(collectives.step, ("all_gather", "reduce_scatter"))


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
        self._hosts, self._ranks = topology.hosts_by_rank, topology.node_ranks()
        self._timeout_s = timeout_s
        self.begin("a collective", 0)
        self._memories = [
            np.frombuffer(self._window.peer(rank), np.uint8) for rank in range(self.size)
        ]
        self._ticket, self._refused = 0, range(0)

    def begin(self, name: str, about: int) -> None:
        """Note what the next collective is.

        Args:
            name: as errors say it.
            about: of `collectives`.
        """
        self._name, self._about = name, about
        self._monitor = StallMonitor(self._hosts, self._ranks, self._timeout_s, name)

    def refuse(self, why: str) -> None:
        """Skip the next collective, and report the reason to the other ranks."""
        ticket, _ = self._next()
        first = self._refused.start if self._refused.stop == ticket else ticket
        self._refused = range(first, ticket + 1)
        self._window.fail(first, ticket, why)

    def fail(self, why: str) -> None:
        """Skip all later collectives, and report the reason to the other ranks."""
        self._window.fail(self._ticket, FOREVER, why)

    def _wait(self, wait: Callable[[float], T]) -> T:
        """Wait for the node's ranks.

        Raises:
            StallError: ranks did not arrive in time, or ended.
            MismatchError: they are in another collective.
            HvdExtError: a rank has said that it failed.
        """
        try:
            return self._monitor(self._sliced(wait))
        except CollectivesDifferError:
            raise self._differ() from None
        except PeersFailedError as failed:
            late = failed.args[0]
            text = collectives.failed(self._name, self._window.why, self._ranks, late)
            raise HvdExtError(text) from None

    def _sliced(self, wait: Callable[[float], T]) -> Callable[[float], T]:
        return wait

    def _differ(self) -> HvdExtError:
        """The error for this ticket, where ranks are not in the same collective."""
        said = [self._window.collective_of(rank, self._ticket) for rank in range(self.size)]
        refused = [rank for rank, (_, about) in enumerate(said) if about == collectives.FAILED]
        if refused:
            return HvdExtError(
                collectives.failed(self._name, self._window.why, self._ranks, refused)
            )
        texts = [collectives.describe(*numbers, self._ranks) for numbers in said]
        return collectives.differ(texts, self._ranks, self._hosts)

    def _meet(self, count_bytes: int, about: int) -> None:
        """Wait until all ranks have come with the next ticket, for the same collective."""
        self._note(count_bytes, about)
        self._wait(functools.partial(self._window.meet, self._ticket))

    def _note(self, count_bytes: int, step: int) -> None:
        collective = self._window.collective
        collective.bytes, collective.about = count_bytes, self._about | step

    def all_gather(self, out: Array, own: Array) -> None:
        """Have every rank hold what all of them have, in rank order.

        Args:
            out: uint8, `size` times as long as `own`.
            own: uint8, as long on every rank.

        Raises:
            StallError: ranks did not arrive in time, or ended.
        """
        self.all_gather_rows(out.reshape(self.size, len(own)), own)

    def all_gather_rows(self, rows: Sequence[Array] | Array, own: Array) -> None:
        """As `all_gather`, with an array for what each rank has."""
        if not np.shares_memory(rows[self.rank], own):
            rows[self.rank][:] = own
        for begin in pieces(len(own), PIECE_BYTES):
            part = own[begin : begin + PIECE_BYTES]
            _, place = self._next()
            self._memories[self.rank][place : place + len(part)] = part
            self._meet(len(own), _ALL_GATHER)
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
        for begin in pieces(len(out), most):
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
            self._note(out.nbytes, _REDUCE_SCATTER)
            self._wait(functools.partial(self._window.reduce, exchange, ticket))
            summed = self._memories[self.rank][at : at + count * item]
            out[begin : begin + count] = summed.view(out.dtype)

    def _gather_numbers(self, own: Array, count_bytes: int, step: int) -> Array:
        """The numbers of every rank, by rank; int64, as many on each; all ranks have come by then.

        Args:
            own: this rank's.
            count_bytes: of the collective that they are part of, if all ranks have the same.
            step: of that.
        """
        _, place = self._next()
        part = slice(place, place + own.nbytes)
        self._memories[self.rank][part].view(np.int64)[:] = own
        self._meet(count_bytes, step)
        return np.stack([memory[part].view(np.int64) for memory in self._memories])

    def _next(self) -> tuple[int, int]:
        """The next ticket, and where its piece lies."""
        self._ticket += 1
        return self._ticket, (self._ticket & 1) * PIECE_BYTES


def pieces(count: int, most: int) -> range:
    """Where the pieces of a message begin; nothing is a piece too, so that ranks meet."""
    return range(0, max(1, count), most)
