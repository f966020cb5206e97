"""The arena in host memory: buckets are in the window that the ranks of a node share.

Within the node each rank reduces its shard of a bucket straight from its peers'
memory. On several nodes the shards then go between nodes, every local rank with its
own, by the algorithm that the table names, and only then back to the node's ranks;
meanwhile the next buckets are reduced within the node.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.arena.inter_node import Channels
from hvd_ext.arena.protocol import Arena
from hvd_ext.arena.tickets import Tickets
from hvd_ext.events import CommEvent, emit
from hvd_ext.job.watchdog import NO_LIMIT_S
from hvd_ext.shm.regions import on_every_rank
from hvd_ext.shm.window import FOREVER, TREE_SUM, NodeWindow, PeersFailedError
from hvd_ext.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpi4py import MPI

    from hvd_ext.allreduce.operations import Array
    from hvd_ext.arena.config import ArenaConfig
    from hvd_ext.arena.layout import Layout


class HostArena(Arena):
    """An Arena in the memory that the ranks of a node share, all zero at first."""

    # Regions of the window, each with a place for every element.
    _REGIONS = 1
    # Whether each rank writes its reduced shards to the node's other ranks.
    _GIVES_SUMS = True

    def __init__(
        self,
        config: ArenaConfig,
        layout: Layout,
        scale: float,
        between_nodes: bool = True,
        in_tree_order: bool = False,
    ) -> None:
        """Make the window; collective over the world.

        Args:
            config: how it exchanges.
            layout: the buckets.
            scale: what every element of a sum is multiplied by.
            between_nodes: whether sums are over all nodes, or within each.
            in_tree_order: whether the order of a sum is the same however the ranks are divided
                among nodes; ranks are then a power of two, and no gradients are of 16 bits.

        Raises:
            WindowError: on every rank, if those of any node cannot share memory.
        """
        self.layout, topology = layout, config.topology
        # Looked up now, because the job, and MPI with it, may end at any time.
        self._nodes, self._ranks = topology.cross.size if between_nodes else 1, topology.node.size
        self._size = self._nodes * self._ranks
        self._window = on_every_rank(topology, lambda: self._make_window(topology.node))
        self.data: Array = np.frombuffer(self._window.data, np.uint8, layout.total_bytes)
        self._local = self._nodes == 1
        limit_s = config.timeout_s if self._local else NO_LIMIT_S
        self._monitored = topology.monitor(limit_s, "a gradient exchange", config.setting)
        at_once = self._local and self._GIVES_SUMS
        # This saves a pass over memory: a node of one rank has nothing to sum, and coding scales.
        coding_scales = self._ranks == 1 and not self._local and config.format.is_coded
        self._in_tree_order = in_tree_order
        # If the whole sum is scaled once, it is rounded in the same way on any number of nodes.
        scales_late = in_tree_order and not self._local
        self._exchanges = [
            self._window.plan(
                b.offset_bytes,
                b.count,
                b.dtype,
                1.0 if scales_late or (coding_scales and b.dtype == "float32") else scale,
                local=at_once,
                operation=TREE_SUM if in_tree_order else "sum",
            )
            for b in layout.buckets
        ]
        if not self._local:
            self._channels = Channels(
                config,
                "arena",
                layout.buckets,
                self.shards,
                [self.data[begin:end] for begin, end in self.shards],
                scale if coding_scales or scales_late else 1.0,
                in_tree_order,
            )
        self._tickets = Tickets()
        self._titles = [
            f"hvd_ext's gradient exchange, {layout.title(i)}" for i in range(len(layout.buckets))
        ]
        # The times at which the buckets of this round were ready.
        self._ready_s = [0.0] * len(layout.buckets)
        # Emits the last exchange, whose end is not known yet, prolonged by a number of seconds.
        self._report: Callable[[float], None] | None = None

    def check_while_waiting(self, check: Callable[[], None]) -> None:
        """Call `check` while waiting for ranks; an error that it raises ends the wait."""
        self._monitored.check = check

    def _make_window(self, node: MPI.Comm) -> NodeWindow:
        return NodeWindow(node, self._REGIONS * self.layout.total_bytes)

    def ready(self, index: int) -> None:
        now_s = time.monotonic()
        for there in self._tickets.make_ready(index):
            self._ready_s[there] = now_s
        self._window.ready(self._tickets.of(index))

    def reduce(self, index: int) -> None:
        bucket, exchange = self.layout.buckets[index], self._exchanges[index]
        ticket = self._tickets.of(index)
        start_s = time.monotonic()
        with self._watched():
            self._wait(lambda t: self._window.reduce(exchange, ticket, t), self._titles[index])
        reduced_s, transfer_s = time.monotonic(), exchange.transfer_s
        ready_s = self._ready_s[index]

        def report(longer_s: float) -> None:
            emit(
                CommEvent(
                    "allreduce",
                    "shared_memory" if self._local else "hierarchical",
                    bucket.message_bytes,
                    self._size,
                    start_s,
                    # The monitor waits in slices, of which the window knows the last.
                    max(0.0, reduced_s - start_s - transfer_s),
                    transfer_s + longer_s,
                    ready_s,
                )
            )

        if self._channels is None:
            self._emit()
            self._report = report
            return

        def publish() -> None:
            if self._GIVES_SUMS:
                self._window.publish(exchange)
            report(time.monotonic() - reduced_s)

        self._channels.take(index, publish)

    def finish(self) -> None:
        if not self.layout.buckets:
            return
        ticket = self._tickets.finish(len(self.layout.buckets))
        before = time.monotonic()
        with self._watched():
            if self._channels:
                self._channels.wait()
                self._window.done(ticket)
            self._wait(lambda t: self._window.finish(ticket, t))
        # The additional time for the other ranks' shards is part of the last exchange.
        self._emit(time.monotonic() - before)

    @property
    def shards(self) -> list[tuple[int, int]]:
        return [exchange.shard_bytes for exchange in self._exchanges]

    def explain(self) -> str:
        if self._size == 1:
            return "1 rank: nothing is exchanged"
        how = "each its shard straight from its peers' memory"
        text = f"within a node: {counted(self._ranks, 'rank')}, "
        text += how if self._ranks > 1 else "nothing to reduce"
        text += ", in tree order" * self._in_tree_order
        if self._channels is None or not self.layout.buckets:
            return text
        return f"{text}\n{self._channels.explain()}"

    def close(self) -> None:
        self._leave()
        if self._channels:
            self._channels.close()

    def hurry(self, within_s: float) -> bool:
        self._leave()
        return super().hurry(within_s)

    def _leave(self) -> None:
        """Let the node's ranks that reach a later exchange continue without this rank."""
        self._window.fail(self._tickets.finished + 1, FOREVER, "")

    def _wait(self, wait: Callable[[float], object], about: str = "") -> None:
        """Wait for the node's ranks.

        Raises:
            StallError: they did not arrive in time, or ended, or have closed their arenas.
        """
        try:
            self._monitored(wait, about)
        except PeersFailedError as left:
            raise self._monitored.error(left.args[0], ended=True) from None

    def _emit(self, longer_s: float = 0.0) -> None:
        report, self._report = self._report, None
        if report is not None:
            report(longer_s)
