"""The arena of a sharded optimizer: ranks keep their shards' sums, and exchange parameters.

A rank keeps the sums of its shard of each bucket, updates the parameters that belong to
them, and writes those into the memory of the node's other ranks: stage 1 of ZeRO
(Rajbhandari et al., SC 2020) within a node. Every rank has its own copy of the parameters. The
other ranks write to it only while all ranks are in `give_parameters`, or have allowed it.
"""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.arena.host import HostArena

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hvd_ext.allreduce.operations import Array
    from hvd_ext.shm.window import NodeExchange


class ShardedArena(HostArena):
    """A HostArena whose `finish` leaves each rank only the sums of that rank's shards.

    Attributes:
        parameters: this rank's parameters as an array of uint8, each at the offset of its
            gradient.
    """

    _REGIONS = 2
    _GIVES_SUMS = False

    @cached_property
    def parameters(self) -> Array:
        total = self.layout.total_bytes
        return np.frombuffer(self._window.data, np.uint8, total, total)

    @cached_property
    def _of_parameters(self) -> list[NodeExchange]:
        total = self.layout.total_bytes
        return [
            self._window.plan(total + b.offset_bytes, b.count, b.dtype, 1.0, local=False)
            for b in self.layout.buckets
        ]

    def finish(self) -> None:
        """Wait until this rank's shards are reduced.

        Raises:
            StallError: as `reduce` does.
        """
        self._tickets.finish(len(self.layout.buckets))
        if self._channels:
            with self._watched():
                self._channels.wait()

    def give_sums(self) -> None:
        """Give every rank of the node the sums of all shards; collective, after `finish`."""
        self._give(self._exchanges)

    def allow_parameters(self) -> None:
        """Promise to read no parameters of other ranks' shards before `give_parameters`.

        Ranks that have updated their shards then need not wait for this one.
        """
        self._window.ready(self._tickets.of(0))

    def give_parameters(self) -> None:
        """Give every rank of the node this rank's shards of the parameters; collective.

        Raises:
            StallError: as `reduce` does.
        """
        self._give(self._of_parameters)

    def explain(self) -> str:
        return f"{super().explain()}\nsharded: a rank updates its shard of the parameters"

    def _give(self, exchanges: Sequence[NodeExchange]) -> None:
        if not exchanges:
            return
        before_s = time.monotonic()
        ticket = self._tickets.finish(1)
        with self._watched():
            # A rank that has not arrived yet may still read or change memory that would be
            # overwritten.
            self._wait(lambda t: self._window.meet(ticket, t))
            for exchange in exchanges:
                self._window.publish(exchange)
            self._window.done(ticket)
            self._wait(lambda t: self._window.finish(ticket, t))
        self._emit(time.monotonic() - before_s)
