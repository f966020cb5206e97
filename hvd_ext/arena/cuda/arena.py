"""The arena in device memory: the node's other processes can open the memory of its buckets.

Each rank reduces its shard of a bucket straight from its peers' memory into theirs, by one kernel
on a separate stream. Where the table says so, it copies the shard from one peer after the other
instead: pairwise.py. The GPU keeps the order by events: a bucket's event is recorded where its
gradients are made, and every rank's stream waits for those of all. An event of another process is
valid only once it is recorded, which the window's tickets report on the host: `ready` reports it,
and the progress thread waits for it. The training thread never waits in backward.

On several nodes the shard is reduced into this rank's memory alone, and copied to pinned memory of
the host, from which it goes between the nodes as a HostArena's does. From there it is copied to the
device, and to the peers. Any MPI will do, for none sees device memory then.

Where the table names NCCL for float32 of some size, NCCL sums these buckets: all ranks' on one
node, the nodes' shards on several. Its kernels wait for each other, so they are queued only when
the ticket of every rank is there. Where the table names MPI, shards go between nodes by messages
from and to device memory, which the MPI library must take: by_mpi.py.

This has run on one GPU that processes share, not yet on several GPUs or nodes:
docs/reference/gpu.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from hvd_ext.allreduce.carrier_names import NCCL, STAGED, in_any_order, is_pairwise
from hvd_ext.allreduce.table import BUILT_IN, Row, Table
from hvd_ext.arena.cuda import nccl
from hvd_ext.arena.cuda.between_nodes import BetweenNodes
from hvd_ext.arena.cuda.choice import Choice
from hvd_ext.arena.cuda.ipc import Exported, Handles, Opened, or_window_error, settle
from hvd_ext.arena.cuda.kernels import VECTOR_BYTES, Kernels, on_gpu
from hvd_ext.arena.cuda.pairwise import Pairwise
from hvd_ext.arena.cuda.times import GpuTimes
from hvd_ext.arena.layout import Bucket, Layout
from hvd_ext.arena.protocol import Arena
from hvd_ext.arena.tickets import Tickets
from hvd_ext.dtypes import DTYPES
from hvd_ext.events import CommEvent, listening
from hvd_ext.job.watchdog import NO_LIMIT_S
from hvd_ext.shm.layout import shard
from hvd_ext.shm.regions import WindowError, on_every_rank
from hvd_ext.shm.window import NodeWindow
from hvd_ext.units import MIB, counted

if TYPE_CHECKING:
    from hvd_ext.arena.config import ArenaConfig

BUCKET_BYTES = 16 * MIB  # unless the user says otherwise; not measured
# A rank that leaves frees its memory. The other ranks' work there has ended by then, except for
# queued work: the rank waits at most this long until they report that it has ended.
_LEAVE_WITHIN_S = 5.0
_LEAVING = 2**63  # a ticket after all others


class DeviceArena(Arena):
    """An Arena in device memory.

    After `finish`, work that is queued on the stream that is current then sees the results; the
    host has waited for the other ranks' hosts, not for any GPU.

    Attributes:
        data: this rank's memory, a CuPy array of uint8, all zero at first.
        carriers: name of each bucket's carrier, as in tables.
    """

    def __init__(
        self,
        config: ArenaConfig,
        layout: Layout,
        scale: float,
        device: int,
        current_stream: Callable[[], int],
    ) -> None:
        """Make the memory and open the peers'; collective over the world.

        Args:
            config: how it exchanges.
            layout: the buckets, of SERVED dtypes.
            scale: what every element of a sum is multiplied by.
            device: ordinal of this rank's GPU in this process.
            current_stream: address of the stream in which the calling thread makes and
                reads gradients.

        Raises:
            WindowError: on every rank alike, if the GPUs' memory cannot be shared.
        """
        self.layout, topology = layout, config.topology
        self._device, self._rank = device, topology.node.rank
        limit_s = config.timeout_s if topology.one_node else NO_LIMIT_S
        self._monitored = topology.monitor(limit_s, "a gradient exchange", config.setting)
        self._current_stream = current_stream
        self._window = on_every_rank(topology, lambda: NodeWindow(topology.node, 0))
        # If nothing is exchanged, an exchange only waits until all ranks are ready.
        self._meeting = self._window.plan(0, 0, "float32", scale, local=False)
        # An event for each bucket, and one for when this rank has done its shards.
        events = len(layout.buckets) + 1
        # Memory is reused: work that the peers have queued there must have ended, too.
        on_every_rank(topology, lambda: settle(device))
        self._own = on_every_rank(topology, lambda: Exported(device, layout.total_bytes, events))
        self.data = self._own.data
        self._peers: list[Opened] = []
        handles = topology.node.allgather(self._own.handles)
        try:
            on_every_rank(topology, lambda: self._prepare(device, handles, topology.node.rank))
        except WindowError:
            self._close_peers()
            raise
        self._scales = [scale] * len(layout.buckets)
        self._shards = [
            vectors(bucket, topology.node.size, topology.node.rank) for bucket in layout.buckets
        ]
        self._topology = topology
        self._choice = Choice(config, layout.buckets, device)
        self._nccl: nccl.Communicator | None = None
        if self._choice.uses(NCCL):
            self._nccl = nccl.communicator(topology, device, config.timeout_s)
        if self._nccl is None:
            self._choice.use_no_nccl()
        self.carriers = self._choice.names
        self._pairwise = self._make_pairwise()
        self._between: BetweenNodes | None = None
        if not topology.one_node:
            # As in HostArena: a node of one rank has nothing to sum, and coding scales.
            coding_scales = topology.node.size == 1 and config.format.is_coded
            if coding_scales:
                self._scales = [
                    1.0 if bucket.dtype == "float32" else scale for bucket in layout.buckets
                ]
            self._between = BetweenNodes(
                config,
                layout.buckets,
                self.shards,
                self._addresses,
                device,
                self._stream,
                scale if coding_scales else 1.0,
                self._nccl,
                [in_any_order(name) for name in self.carriers],
                self._kernels,
            )
            self._channels = self._between.channels
        self._tickets = Tickets()
        self._times = GpuTimes(self._runtime)
        self._ready_s = [0.0] * len(layout.buckets)
        self._closed = False

    def enter_thread(self) -> None:
        """Make the arena's GPU the calling thread's.

        Otherwise the thread would return to GPU 0 after each call, and allocate memory there.
        """
        self._runtime.setDevice(self._device)

    def ready(self, index: int) -> None:
        """Say that this rank's gradients of the buckets up to `index` are in the stream."""
        stream, now_s = self._current_stream(), time.monotonic()
        with self._on_device():
            for there in self._tickets.make_ready(index):
                self._runtime.eventRecord(self._own.events[there], stream)
                self._ready_s[there] = now_s
        self._window.ready(self._tickets.of(index))

    def reduce(self, index: int) -> None:
        """Queue the reduction of this rank's shard of bucket `index`; buckets come in order.

        Raises:
            StallError: ranks did not arrive in time, or ended.
        """
        if not self._tickets.is_ready(index):
            self.ready(index)
        ticket, start_s = self._tickets.of(index), time.monotonic()
        with self._watched():
            self._monitored(lambda t: self._window.reduce(self._meeting, ticket, t))
        exchange = self._event(index, start_s) if listening() else None
        with self._on_device():
            by_nccl = self._between is None and self.carriers[index] == NCCL
            for events in [self._own.events] if by_nccl else self._events:
                self._runtime.streamWaitEvent(self._stream.ptr, events[index])
            timed = self._times.begin(exchange, self._stream.ptr) if exchange else None
            if by_nccl:
                self._sum_by_nccl(index)
            else:
                self._sum_in_node(index)
            end = partial(self._times.end, timed) if timed else None
            if self._between is not None:
                self._between.take(index, end)
            elif end is not None:
                end(self._stream.ptr)

    def _sum_by_nccl(self, index: int) -> None:
        """Queue the sum of a bucket over NCCL, and scale it."""
        assert self._nccl is not None
        bucket = self.layout.buckets[index]
        self._nccl.sum(self._own.address + bucket.offset_bytes, bucket.count, self._stream.ptr)
        own, whole = (self._owns, self._owns), vectors(bucket, 1, 0)
        self._kernels.sum(bucket.dtype, own, whole, self._scales[index], self._stream)

    def _sum_in_node(self, index: int) -> None:
        """Queue the sum of this rank's shard, into the memory of all ranks if there is one node."""
        dtype, by = self.layout.buckets[index].dtype, (self._scales[index], self._stream)
        if is_pairwise(self.carriers[index]):
            assert self._pairwise is not None
            self._pairwise.sum(dtype, self.shards[index], self._between is None, *by)
            return
        into = self._everyones if self._between is None else self._owns
        self._kernels.sum(dtype, (self._everyones, into), self._shards[index], *by)

    def _event(self, index: int, start_s: float) -> CommEvent:
        """Return the event of an exchange whose ranks have arrived, without the GPU's time."""
        return CommEvent(
            "allreduce",
            self._choice.recorded(index),
            self.layout.buckets[index].message_bytes,
            self._topology.world.size,
            start_s,
            time.monotonic() - start_s,
            0.0,
            self._ready_s[index],
        )

    def finish(self) -> None:
        """Make the current stream wait until every rank has reduced its shards.

        Raises:
            StallError: ranks did not arrive in time, or ended.
        """
        if not self.layout.buckets:
            return
        ticket = self._tickets.finish(len(self.layout.buckets))
        stream = self._current_stream()
        with self._on_device(), self._watched():
            last = self._stream
            if self._between is not None:
                last = self._between.wait()
            self._runtime.eventRecord(self._own.events[-1], last.ptr)
            self._window.done(ticket)
            self._monitored(lambda t: self._window.finish(ticket, t))
            for events in self._events:
                self._runtime.streamWaitEvent(stream, events[-1])
            self._times.report()

    def synchronize(self) -> None:
        """Wait on the host until all work of the current stream has ended."""
        with self._on_device():
            self._runtime.streamSynchronize(self._current_stream())

    @property
    def shards(self) -> list[tuple[int, int]]:
        return [
            (first * VECTOR_BYTES, (first + count) * VECTOR_BYTES) for first, count in self._shards
        ]

    def explain(self) -> str:
        text = (
            f"on GPUs of a node: {counted(len(self._events), 'rank')}, each its shard straight "
            "from its peers' memory (CUDA IPC)"
        )
        if not self.layout.buckets:
            return text
        if self._between is None:
            return f"{text}\n{self._choice.explain()}"
        if self._choice.uses(STAGED):
            text += f"\n{self._between.channels.explain()}, through pinned memory of the host"
        return f"{text}\nbetween nodes: {self._choice.explain()}"

    def close(self) -> None:
        """Wait some seconds for the node's ranks to close theirs, then close the peers' memory."""
        if self._closed:
            return
        self._closed = True
        if self._channels is not None:
            self._channels.close()
        with self._on_device():
            self._times.report()
        # In the middle of a round, the other ranks must not take this for finished work.
        if not self._tickets.is_ready(0):
            with self._on_device():
                self._runtime.deviceSynchronize()
            self._window.done(_LEAVING)
            # A rank that has ended or is late no longer needs this rank's memory.
            with suppress(TimeoutError, ProcessLookupError):
                self._window.finish(_LEAVING, _LEAVE_WITHIN_S)
        self._close_peers()

    def hurry(self, within_s: float) -> bool:
        # Within a node `close` waits for some seconds only.
        return self._channels is None or self._channels.hurry(within_s)

    def _prepare(self, device: int, handles: list[Handles], rank: int) -> None:
        """Open the peers' memory, and compile the kernel."""
        everybodys: list[Exported | Opened] = []
        for index, of_rank in enumerate(handles):
            if index == rank:
                everybodys.append(self._own)
            else:
                self._peers.append(Opened(device, of_rank))
                everybodys.append(self._peers[-1])
        self._events = [memory.events for memory in everybodys]
        with or_window_error(f"the kernel for GPU {device}"):
            import cupy

            self._runtime = cupy.cuda.runtime
            self._on_device: Callable[[], Any] = partial(cupy.cuda.Device, device)
            with self._on_device():
                self._kernels = Kernels(device)
                self._stream = cupy.cuda.Stream(non_blocking=True)
                self._addresses = [m.address for m in everybodys]
                self._everyones = on_gpu(self._addresses)
                self._owns = on_gpu([self._own.address])
                self._runtime.deviceSynchronize()

    def _make_pairwise(self) -> Pairwise | None:
        """Make what sums with one peer at a time, if a bucket needs it; collective."""
        if not any(map(is_pairwise, self.carriers)):
            return None
        longest_bytes = max(end - begin for begin, end in self.shards)
        given = self._device, self._kernels, self._addresses, self._rank, longest_bytes
        return on_every_rank(self._topology, lambda: Pairwise(*given))

    def _close_peers(self) -> None:
        while self._peers:
            self._peers.pop().close()


def carried_by(name: str, table: Table = BUILT_IN) -> Table:
    """A table with one carrier for every bucket."""
    return Table((Row(0, 0, "device", ((0, name),)), *table.rows), table.source)


def vectors(bucket: Bucket, size: int, rank: int) -> tuple[int, int]:
    """Return the begin and the length of the shard of `rank` in the arena, in units of 16 bytes."""
    item_bytes = DTYPES[bucket.dtype].item_bytes
    begin, end = shard(bucket.count, size, rank, item_bytes)
    first_byte = bucket.offset_bytes + begin * item_bytes
    return first_byte // VECTOR_BYTES, (end - begin) * item_bytes // VECTOR_BYTES
