"""The arena in host memory: buckets lie in the node-shared window.

Within the node each rank reduces its share of a bucket straight from its peers'
memory. On several nodes the shares then go between nodes, every local rank with its
own, by the algorithm that the table names, and only then back to the node's ranks;
meanwhile the next buckets are reduced within the node.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from hvd_ext.arena.lanes import Lanes
from hvd_ext.arena.window import Window, WindowError
from hvd_ext.errors import StallError
from hvd_ext.events import CommEvent, emit
from hvd_ext.settings import WARN_AFTER_S
from hvd_ext.watchdog import Watchdog, end_job, stall_sentence

if TYPE_CHECKING:
    from hvd_ext.allreduce.table import Table
    from hvd_ext.arena.plan import Plan
    from hvd_ext.topology import Topology

log = logging.getLogger("hvd_ext")
T = TypeVar("T")
_NO_LIMIT_S = 1e9
# Between two slices of a wait Python sees to Ctrl-C.
_SLICE_S = 0.5


class HostArena:
    """Gradient memory of one plan, and the exchange of its buckets.

    Every rank makes it with the same plan. In each round, `ready` says what is there,
    `reduce` takes the buckets in their order, and after `finish` the results are.
    `ready` may be called from another thread than the other two.

    Attributes:
        plan: what lies where.
        data: this rank's memory, `plan.total_bytes` long, all zero at first.
    """

    def __init__(
        self,
        topology: Topology,
        plan: Plan,
        scale: float,
        table: Table,
        timeout_s: float,
    ) -> None:
        """Make the window; collective over the world.

        Args:
            topology: nodes and ranks; homogeneous.
            plan: the buckets.
            scale: what every element of a sum is multiplied by.
            table: names the algorithm between nodes, by the size of a share.
            timeout_s: how long ranks are waited for.

        Raises:
            WindowError: on every rank, if those of any node cannot share memory.
        """
        self.plan = plan
        self._topology = topology
        self._table = table
        self._timeout_s = timeout_s
        self._window = _open_window(topology, plan.total_bytes)
        self.data = self._window.data
        self._local = topology.cross.size == 1
        self._exchanges = [self._window.plan(b, scale, self._local) for b in plan.buckets]
        self._lanes: Lanes | None = None
        self._watchdog: Watchdog | None = None
        if not self._local:
            shares = [self.data[slice(*x.share_bytes)] for x in self._exchanges]
            self._lanes = Lanes(topology, plan.buckets, shares, table)
            self._watchdog = Watchdog(topology, timeout_s)
        self._ticket = 0  # of the last exchange that is finished
        self._event: CommEvent | None = None

    def ready(self, index: int) -> None:
        """Say that this rank's gradients of the buckets up to `index` are there."""
        self._window.ready(self._ticket + index + 1)

    def reduce(self, index: int) -> None:
        """Reduce this rank's share of bucket `index`; buckets come in their order.

        Between nodes the share goes on its way and this returns.

        Raises:
            StallError: ranks of this node did not come in time, or ended. Ranks of
                other nodes are the watchdog's, which ends the job.
        """
        bucket, exchange = self.plan.buckets[index], self._exchanges[index]
        ticket = self._ticket + index + 1
        start_s = time.monotonic()
        with self._watched():
            self._patiently(lambda t: self._window.reduce(exchange, ticket, t))
        event = CommEvent(
            "allreduce",
            "hierarchical",
            bucket.message_bytes,
            self._topology.world.size,
            start_s,
            exchange.wait_s,
            exchange.transfer_s,
        )
        if self._lanes is None:
            self._emit()
            self._event = event
            return
        reduced_s = time.monotonic()

        def publish() -> None:
            self._window.publish(exchange)
            between_s = time.monotonic() - reduced_s
            emit(replace(event, transfer_s=event.transfer_s + between_s))

        self._lanes.take(index, publish)

    def finish(self) -> None:
        """Wait until every rank has reduced its share of every bucket.

        Raises:
            StallError: as `reduce` does.
        """
        if not self.plan.buckets:
            return
        self._ticket += len(self.plan.buckets)
        before = time.monotonic()
        with self._watched():
            if self._lanes:
                self._lanes.wait()
                self._window.done(self._ticket)
            self._patiently(lambda t: self._window.finish(self._ticket, t))
        # What the other ranks' shares took longer is part of the last exchange.
        self._emit(time.monotonic() - before)

    def explain(self) -> str:
        """Say how the largest bucket is reduced, and why."""
        ranks = self._topology.node.size
        largest = max((bucket.message_bytes for bucket in self.plan.buckets), default=0)
        text = f"within a node: {ranks} ranks, each its share straight from its peers' memory"
        if self._local:
            return text
        share_bytes = -(-largest // ranks)
        between = self._table.explain(self._topology.cross.size, 1, "host", share_bytes)
        return f"{text}\nbetween nodes, the longest share: {between}"

    def close(self) -> None:
        """Stop the threads; the memory goes when nothing refers to it any more."""
        if self._lanes:
            self._lanes.close()
        if self._watchdog:
            self._watchdog.close()

    def _emit(self, longer_s: float = 0.0) -> None:
        if self._event is not None:
            emit(replace(self._event, transfer_s=self._event.transfer_s + longer_s))
        self._event = None

    def _watched(self) -> AbstractContextManager[None]:
        return self._watchdog.guard() if self._watchdog else nullcontext()

    def _patiently(self, wait: Callable[[float], T]) -> T:
        """Call `wait` with a time limit until it ends or the time allowed is over."""
        limit_s = self._timeout_s if self._local else _NO_LIMIT_S
        warn_at_s = WARN_AFTER_S
        start_s = time.monotonic()
        while True:
            try:
                return wait(_SLICE_S)
            except ProcessLookupError as ended:
                raise self._stall(self._sentence_ended(ended.args[0])) from None
            except TimeoutError as late:
                waited_s = time.monotonic() - start_s
                ranks = self._world_ranks(late.args[0])
                if waited_s >= limit_s:
                    raise self._stall(stall_sentence(self._topology, ranks, limit_s)) from None
                if waited_s >= warn_at_s:
                    names = ", ".join(self._topology.name(rank) for rank in ranks)
                    log.warning("hvd_ext: waiting for %s since %.0f s", names, waited_s)
                    warn_at_s += WARN_AFTER_S

    def _sentence_ended(self, local_ranks: list[int]) -> str:
        names = ", ".join(self._topology.name(r) for r in self._world_ranks(local_ranks))
        return f"{names} ended before a gradient exchange that other ranks wait in"

    def _stall(self, sentence: str) -> StallError:
        error = StallError(sentence)
        end_job(error)
        return error

    def _world_ranks(self, local_ranks: list[int]) -> list[int]:
        of_node = self._topology.node_world_ranks()
        return [of_node[rank] for rank in local_ranks]


def _open_window(topology: Topology, data_bytes: int) -> Window:
    """Open the node's window, if every node can: what comes next is for all ranks."""
    window, problem = None, ""
    try:
        window = Window(topology.node, data_bytes)
    except WindowError as error:
        problem = f"on {topology.hosts[topology.world.rank]}: {error}"
    problems = [text for text in topology.world.allgather(problem) if text]
    if window is None or problems:
        raise WindowError(problems[0])
    return window
