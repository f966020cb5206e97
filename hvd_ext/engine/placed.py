"""FSDP's tensors in memory that a node's ranks read from each other, with no copy into a window.

FSDP allocates the tensor of a collective just before the collective, fills it, and frees it soon
after. The tensor gets one of two places, alternately. At the start of each collective ranks compare
the places of their tensors; if they differ, the collective goes through OneNode, which accepts any
memory. So nothing depends on when a rank's tensors are freed.
"""

from __future__ import annotations

import functools
import logging
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_ext.dtypes import DTYPES
from hvd_ext.engine.compared import Describe, step
from hvd_ext.engine.one_node import OneNode
from hvd_ext.shm.block import Block
from hvd_ext.shm.layout import align_up
from hvd_ext.shm.regions import WindowError, on_every_rank
from hvd_ext.shm.window import FOREVER, NodeWindow

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.job.topology import Topology

log = logging.getLogger("hvd_ext")
_NOWHERE = -1


class Placed(OneNode):
    """The collectives of one group, whose ranks are all on one node."""

    def __init__(
        self, topology: Topology, timeout_s: float, describe: Describe, setting: str
    ) -> None:
        """See OneNode; there are no places before the first collective."""
        super().__init__(topology, timeout_s, describe, setting)
        self._topology = topology
        self._places: NodeWindow | None = None
        self._place_memories: list[Array] = []
        self._place_ticket = 0
        self._place_bytes = self._wanted_bytes = 0
        self._can_grow = True
        self._turn = 0
        self._lent: list[Any] = [None, None]
        # The ticket of the collective in which peers last read a place.
        self._read_in = [0, 0]

    def take(self, count_bytes: int) -> Array | None:
        """Return memory for the tensor of the next collective.

        Args:
            count_bytes: its length. If the places are shorter, the collective makes longer ones.

        Returns:
            uint8, whose memory is lent until the array and its views are freed; None if the next
            place is in use or too short.
        """
        self._turn = place = 1 - self._turn
        self._wanted_bytes = max(self._wanted_bytes, count_bytes)
        lent = self._lent[place]
        # A place is free once its readers have reached a later collective.
        free = (lent is None or lent() is None) and self._outside.ticket > self._read_in[place]
        if not free or not 0 < count_bytes <= self._place_bytes:
            return None
        begin = place * self._place_bytes
        memory = self._place_memories[self.rank][begin : begin + count_bytes]
        self._lent[place] = weakref.ref(memory)
        return memory

    def all_gather(self, out: Block, own: Block) -> None:
        count = own.count_bytes
        in_place = own.address == out.address + self.rank * count
        place = self._agree(out if in_place else None, count, "all_gather")
        if place is None:
            super().all_gather(out, own)
        else:
            begin, rows = place * self._place_bytes, out.array
            for distance in range(1, self.size):
                row = (self.rank + distance) % self.size
                part = slice(row * count, (row + 1) * count)
                rows[part] = self._place_memories[row][begin:][part]
        self._grow()

    def reduce_scatter(
        self, out: Block, own: Block, dtype: str, scale: float, operation: str = "sum"
    ) -> None:
        """See `OneNode.reduce_scatter`; `own` may be overwritten."""
        place = self._agree(own, out.count_bytes, "reduce_scatter")
        if place is None:
            super().reduce_scatter(out, own, dtype, scale, operation)
        else:
            assert self._places is not None
            row_bytes = out.count_bytes
            count = row_bytes // DTYPES[dtype].item_bytes
            at = place * self._place_bytes + self.rank * row_bytes
            exchange = self._places.plan(
                at, count, dtype, scale, local=False, operation=operation, part=(0, count)
            )
            self._place_ticket += 1
            self._wait(functools.partial(self._places.reduce, exchange, self._place_ticket))
            out.array[:] = self._place_memories[self.rank][at : at + row_bytes]
        self._grow()

    def fail(self, why: str) -> None:
        super().fail(why)
        if self._places is not None:
            self._places.fail(self._place_ticket, FOREVER, why)

    def _agree(self, block: Block | None, count_bytes: int, step_name: str) -> int | None:
        """Return the place in which every rank has its array; None if the places differ."""
        own = _NOWHERE if block is None else self._place_of(block)
        everyones = self._gather_numbers(
            np.array([own, self._wanted_bytes]), count_bytes, step(step_name)
        )
        self._wanted_bytes = int(everyones[:, 1].max())
        if own == _NOWHERE or not (everyones[:, 0] == own).all():
            return None
        self._read_in[own] = self._outside.ticket
        return own

    def _place_of(self, block: Block) -> int:
        if self._places is None:
            return _NOWHERE
        distance = block.address - Block.of(self._place_memories[self.rank]).address
        place, rest = divmod(distance, self._place_bytes)
        return place if place in (0, 1) and not rest else _NOWHERE

    def _grow(self) -> None:
        """Make room for the longest tensor that a rank has requested; collective."""
        wanted = align_up(self._wanted_bytes)
        if wanted <= self._place_bytes or not self._can_grow:
            return
        try:
            made = on_every_rank(
                self._topology, lambda: NodeWindow(self._topology.node, 2 * wanted)
            )
        except WindowError as error:  # on every rank alike
            self._can_grow = False
            if self.rank == 0:
                log.warning("hvd_ext: FSDP's tensors are copied: %s", error)
            return
        self._places, self._place_bytes, self._place_ticket = made, wanted, 0
        self._place_memories = [
            np.frombuffer(made.peer(rank), np.uint8) for rank in range(self.size)
        ]
        self._lent, self._read_in = [None, None], [0, 0]
