"""Between the nodes: shards travel while the next buckets are reduced within.

Each channel is a thread with a communicator of its own, so that one bucket's sums and
latencies hide behind another's transfer.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from hvd_ext.allreduce.operations import OPERATIONS, Array
from hvd_ext.allreduce.prepare import prepare
from hvd_ext.dtypes import DTYPES
from hvd_ext.job.progress_thread import ProgressThread, Work, wait_for

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.allreduce.table import Table
    from hvd_ext.arena.layout import Bucket
    from hvd_ext.job.topology import Topology

CHANNELS = 2


class Channels:
    """Takes this rank's shards of the buckets over `topology.cross`."""

    def __init__(
        self,
        topology: Topology,
        comms: Sequence[MPI.Comm],
        buckets: Sequence[Bucket],
        shards: Sequence[Array],
        table: Table,
    ) -> None:
        """Plan every shard's allreduce.

        Args:
            topology: nodes and ranks; homogeneous.
            comms: CHANNELS private copies of `topology.cross`.
            buckets: what the shards are of.
            shards: this rank's part of each bucket.
            table: names the algorithm, by the size of a shard.
        """
        self._threads = [ProgressThread() for _ in comms]
        self._pending: deque[Future[None]] = deque()
        self._calls: list[Callable[[], None]] = []
        for index, (bucket, memory) in enumerate(zip(buckets, shards, strict=True)):
            shard = memory.view(DTYPES[bucket.dtype].stored_as)
            # By the longest shard of the bucket, so that ranks with one a little shorter
            # choose alike.
            longest = -(-bucket.message_bytes // topology.node.size)
            algorithm = table.choose(topology.cross.size, 1, "host", longest)
            comm = comms[index % len(comms)]
            call = prepare(algorithm, comm, shard, OPERATIONS["sum"], bucket.dtype)
            self._calls.append(call if len(shard) else _nothing)

    def take(self, index: int, then: Work) -> None:
        """Start to reduce the shard of bucket `index` between nodes; `then` runs after it."""
        work = functools.partial(_in_order, self._calls[index], then)
        self._pending.append(self._threads[index % len(self._threads)].submit(work))

    def wait(self) -> None:
        """Wait for all that was started; raises what the first failing piece raised."""
        wait_for(self._pending)

    def close(self) -> None:
        """End the threads, after what was started."""
        for thread in self._threads:
            thread.close()
        for thread in self._threads:
            thread.join()


def _in_order(first: Work, second: Work) -> None:
    first()
    second()


def _nothing() -> None:
    """An empty shard: this rank's part of a bucket that is shorter than a line a rank."""
