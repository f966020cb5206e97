"""Between the nodes: shares travel while the next buckets are reduced within.

Each lane is a thread with a communicator of its own, so that one bucket's sums and
latencies hide behind another's transfer.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.allreduce.algorithms import prepare
from hvd_ext.allreduce.operations import OPERATIONS, Array
from hvd_ext.dtypes import DTYPES
from hvd_ext.job.progress_thread import Progress, Work, wait_for

if TYPE_CHECKING:
    from hvd_ext.allreduce.table import Table
    from hvd_ext.arena.layout import Bucket
    from hvd_ext.job.topology import Topology

_LANES = 2


class Lanes:
    """Takes this rank's shares of a plan's buckets over `topology.cross`."""

    def __init__(
        self,
        topology: Topology,
        buckets: Sequence[Bucket],
        shares: Sequence[memoryview],
        table: Table,
    ) -> None:
        """Plan every share's allreduce; collective over `topology.cross`.

        Args:
            topology: nodes and ranks; homogeneous.
            buckets: what the shares are of.
            shares: this rank's part of each bucket.
            table: names the algorithm, by the size of a share.
        """
        cross = topology.cross
        comms = [cross.Dup() for _ in range(_LANES)]
        for index, comm in enumerate(comms):
            comm.Set_name(f"hvd_ext.lane{index}")
        self._lanes = [Progress() for _ in comms]
        self._pending: deque[Future[None]] = deque()
        self._calls: list[Callable[[], None]] = []
        for index, (bucket, memory) in enumerate(zip(buckets, shares, strict=True)):
            share: Array = np.frombuffer(memory, DTYPES[bucket.dtype].stored_as)
            # By the longest share of the bucket, so that ranks with one a little shorter
            # choose alike.
            longest = -(-bucket.message_bytes // topology.node.size)
            algorithm = table.choose(cross.size, 1, "host", longest)
            comm = comms[index % _LANES]
            call = prepare(algorithm, comm, share, OPERATIONS["sum"], bucket.dtype)
            self._calls.append(call if len(share) else _nothing)

    def take(self, index: int, then: Work) -> None:
        """Start to reduce the share of bucket `index` between nodes; `then` runs after it."""
        work = functools.partial(_in_order, self._calls[index], then)
        self._pending.append(self._lanes[index % _LANES].submit(work))

    def wait(self) -> None:
        """Wait for all that was started; raises what the first failing piece raised."""
        wait_for(self._pending)

    def close(self) -> None:
        """End the threads."""
        for lane in self._lanes:
            lane.close()


def _in_order(first: Work, second: Work) -> None:
    first()
    second()


def _nothing() -> None:
    """An empty share: this rank's part of a bucket that is shorter than a line a rank."""
