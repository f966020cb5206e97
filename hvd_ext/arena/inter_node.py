"""Between the nodes: shards travel while the next buckets are reduced within.

Each channel is a thread with its own communicator, so that one bucket's sums and
latencies hide behind another's transfer. Shards of float32 may travel in a format of fewer
bytes; those of 16-bit floats travel as they are.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.allreduce.algorithms import direct
from hvd_ext.allreduce.algorithms.direct_tree import prepare_tree_sum, tree_algorithm
from hvd_ext.allreduce.choice import Group, choose, explain
from hvd_ext.allreduce.operations import OPERATIONS, Array
from hvd_ext.allreduce.prepare import prepare
from hvd_ext.arena.layout import parts
from hvd_ext.compression.exchange import Coded, prepare_coded, prepare_half
from hvd_ext.compression.formats import NONE, Format, wire_bytes
from hvd_ext.compression.powersgd import LowRank, cut
from hvd_ext.dtypes import DTYPES
from hvd_ext.job.progress_thread import ProgressThread, Work, wait_for
from hvd_ext.job.waiting import until
from hvd_ext.job.watchdog import Watchdog
from hvd_ext.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.allreduce.table import Table
    from hvd_ext.arena.config import ArenaConfig
    from hvd_ext.arena.layout import Bucket

CHANNELS = 2


class Channels:
    """Takes this rank's shards of the buckets over `topology.cross`.

    Attributes:
        residuals: for each bucket's shard, the part that this node rounded away and has not sent
            yet, in float32; None if the format keeps nothing.
    """

    def __init__(
        self,
        config: ArenaConfig,
        purpose: str,
        buckets: Sequence[Bucket],
        shards: Sequence[tuple[int, int]],
        memories: Sequence[Array],
        scale: float = 1.0,
        in_tree_order: bool = False,
        by_others: Mapping[int, Callable[[MPI.Comm], Work]] | None = None,
    ) -> None:
        """Plan every shard's allreduce; collective over the world.

        Args:
            config: how it exchanges; an exchange that takes longer than `timeout_s` ends the job,
                and names who is late.
            purpose: part of the communicators' names.
            buckets: the buckets that the shards belong to.
            shards: this rank's part [begin, end) of each bucket, in bytes of the arena.
            memories: of these parts, as uint8.
            scale: what sums in tree order, and those of float32 in a format that is coded, are
                multiplied by.
            in_tree_order: see HostArena.
            by_others: buckets whose memories here are empty, with the exchange that serves each;
                all of them in order, on one channel.
        """
        topology, format = config.topology, config.format
        cross = [topology.cross] * CHANNELS
        self._lease = topology.borrow(purpose, *cross, topology.world)
        *comms, world = self._lease.comms
        self._comms = comms
        self._watchdog = Watchdog(
            topology, world, self._lease.uses, config.timeout_s, setting=config.setting
        )
        self.residuals: list[Array | None] = []
        self._coded: list[Coded | LowRank] = []
        self._rounds = 0
        self._shards: list[Array] = []
        self._threads = [ProgressThread() for _ in comms]
        self._pending: deque[Future[None]] = deque()
        self._calls: list[Work] = []
        self._channel_of: list[int] = []
        self._buckets, self._parts = buckets, shards
        self._table, self._format = config.table, format
        # Looked up now, because the job, and MPI with it, may end at any time.
        self._nodes, self._ranks = topology.cross.size, topology.node.size
        self._in_tree_order = in_tree_order
        by_others = by_others or {}
        for index, (bucket, part) in enumerate(zip(buckets, shards, strict=True)):
            shard = memories[index].view(DTYPES[bucket.dtype].stored_as)
            channel = 0 if index in by_others else index % CHANNELS
            comm, residual = comms[channel], None
            call: Work
            if index in by_others:
                call = by_others[index](comm)
            elif in_tree_order:
                algorithm = tree_algorithm(choose(*self._asked(bucket)))
                call = prepare_tree_sum(algorithm, comm, shard, scale)
            elif DTYPES[bucket.dtype].dtype_class == "half":
                call = prepare_half(comm, shard, bucket.dtype)
            elif bucket.dtype == "float32" and format is not NONE:
                if format.has_residual:
                    residual = np.zeros(len(shard), np.float32)
                if format.rank:
                    assert residual is not None
                    call = self._low_rank(comm, bucket, part, shard, residual)
                else:
                    call = prepare_coded(comm, shard, _runs(bucket, part, format), residual, scale)
            else:
                algorithm = choose(*self._asked(bucket))
                call = prepare(algorithm, comm, shard, OPERATIONS["sum"], bucket.dtype)
            if isinstance(call, (Coded, LowRank)):
                self._coded.append(call)
            self._shards.append(shard)
            self._calls.append(call if len(shard) or index in by_others else _nothing)
            self._channel_of.append(channel)
            self.residuals.append(residual)

    def _asked(self, bucket: Bucket) -> tuple[Table, Group, int, str]:
        """The arguments of `choose` for the shards of a bucket."""
        # By the longest shard of the bucket, so that ranks with a shorter shard choose alike.
        longest_bytes = -(-bucket.message_bytes // self._ranks)
        dtype_class = DTYPES[bucket.dtype].dtype_class
        return self._table, Group.between(self._nodes), longest_bytes, dtype_class

    def _low_rank(
        self, comm: MPI.Comm, bucket: Bucket, part: tuple[int, int], shard: Array, residual: Array
    ) -> LowRank:
        rank, between = self._format.rank, Group.between(self._nodes)
        elements, matrices = [], []
        for span, first, end in parts(bucket, part):
            at = (span.offset_bytes - part[0]) // 4
            elements.append((at + first, at + end))
            if matrix := cut(at + first, first, end - first, span.columns, rank):
                matrices.append(matrix)
        return LowRank(
            shard,
            residual,
            elements,
            matrices,
            rank,
            self._nodes,
            lambda message: prepare(
                choose(self._table, between, message.nbytes, "float"),
                *(comm, message, OPERATIONS["sum"]),
            ),
        )

    def drain(self) -> list[Array | None]:
        """Sum the residuals over the nodes, and give each node an equal part; collective.

        From then on, exchanges depend on no other kept state.

        Returns:
            The sums, as `residuals`.
        """
        totals: list[Array | None] = []
        for residual in self.residuals:
            if residual is None:
                totals.append(None)
                continue
            total = residual.copy()
            direct.allreduce(self._comms[0], total, OPERATIONS["sum"])
            np.divide(total, self._comms[0].size, out=residual)
            totals.append(total)
        for call in self._coded:
            if isinstance(call, LowRank):
                call.restart()
        return totals

    def keep(self, index: int, of_parameters: Mapping[int, Array]) -> None:
        residual, (begin_bytes, _) = self.residuals[index], self._parts[index]
        if residual is None:
            return
        residual.fill(0.0)
        for span, begin, end in parts(self._buckets[index], self._parts[index]):
            if span.parameter in of_parameters:
                at = (span.offset_bytes - begin_bytes) // 4 + begin
                total = of_parameters[span.parameter][begin:end]
                np.divide(total, self._nodes, out=residual[at : at + end - begin])

    def explain(self) -> str:
        """Say how the longest shard goes between the nodes, and why."""
        if self._format is not NONE:
            counts = [
                (end - begin, span.columns)
                for bucket, shard in zip(self._buckets, self._parts, strict=True)
                if bucket.dtype == "float32"
                for span, begin, end in parts(bucket, shard)
            ]
            sizes = (wire_bytes(format, counts) for format in (NONE, self._format))
            before, after = (format_bytes(round(size)) for size in sizes)
            said = f"{self._format.name}: {after} for {before} of this rank's shards"
            return f"between nodes: {said}\nbetween nodes: {self._explain_coding()}"
        largest = max(self._buckets, key=lambda bucket: bucket.message_bytes)
        if self._in_tree_order:
            chosen = tree_algorithm(choose(*self._asked(largest)))
            return f"between nodes, the longest shard: {chosen}, in tree order"
        return f"between nodes, the longest shard: {explain(*self._asked(largest))}"

    def _explain_coding(self) -> str:
        """Report the time of coding, and how much of the last sums' norm is not sent yet."""
        codec_s = sum(call.codec_s for call in self._coded) / max(1, self._rounds)
        text = f"coding takes {format_seconds(codec_s)} a step"
        kept = [(r, s) for r, s in zip(self.residuals, self._shards, strict=True) if r is not None]
        if not kept:
            return text
        # In float64, because squares of small gradients underflow in float32.
        unsent, sums = (
            math.sqrt(sum(float(np.square(a, dtype=np.float64).sum()) for a in arrays))
            for arrays in zip(*kept, strict=True)
        )
        length = f"{unsent / sums:.2g} of the last sum's length" if sums > 0 else "nothing is there"
        return f"{text}; not sent yet, on this node: {length}"

    def take(self, index: int, then: Work, first: Work | None = None) -> None:
        """Start to reduce the shard of bucket `index` between nodes.

        Args:
            index: number of the bucket.
            then: runs after the exchange, on the channel's thread.
            first: runs before it, on the same thread.
        """
        self._rounds += index == 0
        work = functools.partial(_in_order, *([first] if first else []), self._calls[index], then)
        self._pending.append(self._threads[self._channel_of[index]].submit(work))

    def wait(self) -> None:
        """Wait for all started exchanges; raises the error of the first one that failed."""
        wait_for(self._pending)

    def watched(self) -> AbstractContextManager[None]:
        """Meanwhile the watchdog reports ranks of other nodes that are late."""
        return self._watchdog.guard()

    def close(self) -> None:
        """End the threads after the exchanges that were started; to be called once."""
        with self.watched():
            for thread in self._threads:
                thread.close()
            for thread in self._threads:
                thread.join()
        self._watchdog.close()
        self._lease.give_back()

    def hurry(self, within_s: float) -> bool:
        self._watchdog.hurry(within_s)
        return True


def _runs(bucket: Bucket, shard: tuple[int, int], format: Format) -> list[tuple[int, int, Format]]:
    """Return the gradients' parts in a shard, as ranges of its elements, each with its format.

    A parameter of one dimension (a bias, a norm's factor) matters more than its few bytes.
    """
    item = DTYPES[bucket.dtype].item_bytes
    return [
        (
            (span.offset_bytes - shard[0]) // item + begin,
            end - begin,
            NONE if format.has_residual and not span.columns else format,
        )
        for span, begin, end in parts(bucket, shard)
    ]


def _in_order(*works: Work) -> None:
    for work in works:
        work()


def meeting(comm: MPI.Comm) -> Work:
    """Only wait until all ranks are there."""
    return lambda: until(comm.Ibarrier().Test)


def _nothing() -> None:
    """An empty shard: this rank has no part of a bucket that has fewer cache lines than ranks."""
