"""The arena in device memory: buckets lie where the node's other processes can open them.

Each rank reduces its shard of a bucket straight from its peers' memory into theirs, by
one kernel on a separate stream. The GPU keeps the order by events: a bucket's event is
recorded where its gradients are made, and every rank's stream waits for those of all. An
event of another process means something only once it was recorded, which the window's
tickets report this on the host: `ready` says that it was, and the progress thread waits for
that, never the training thread in backward.

Run on one GPU that processes share, not yet on several: docs/reference/gpu.md.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_ext.arena.cuda.ipc import Exported, Handles, Opened, or_window_error, settle
from hvd_ext.arena.layout import Bucket, Layout
from hvd_ext.arena.tickets import Tickets
from hvd_ext.dtypes import DTYPES
from hvd_ext.shm.layout import shard
from hvd_ext.shm.regions import WindowError, on_every_rank
from hvd_ext.shm.window import NodeWindow
from hvd_ext.units import MIB

if TYPE_CHECKING:
    from hvd_ext.job.topology import Topology

BUCKET_BYTES = 16 * MIB  # unless the user says otherwise; not measured
SERVED = ("float32", "float16", "bfloat16")  # those of reduce.cu
_KERNELS = Path(__file__).with_name("reduce.cu")
_VECTOR_BYTES = 16
_THREADS = 512
# Enough to be bound by memory, and few enough to leave room for backward.
_BLOCKS_A_MULTIPROCESSOR = 2
# A rank that leaves takes its memory along. The others' work there is over by then, except
# for what is queued: they may say so, and are waited for no longer than this.
_LEAVE_WITHIN_S = 5.0
_LEAVING = 2**63  # a ticket after all others


class DeviceArena:
    """An Arena in device memory.

    After
    `finish` the results are there for whatever is queued on the stream that is current
    then; the host has waited for the other ranks' hosts, not for any GPU.

    Attributes:
        data: this rank's memory, a CuPy array of uint8, all zero at first.
    """

    def __init__(
        self,
        topology: Topology,
        layout: Layout,
        scale: float,
        timeout_s: float,
        device: int,
        current_stream: Callable[[], int],
    ) -> None:
        """Make the memory and open the peers'; collective over the world.

        Args:
            topology: one node.
            layout: the buckets, of SERVED dtypes.
            scale: what every element of a sum is multiplied by.
            timeout_s: how long ranks are waited for.
            device: ordinal of this rank's GPU in this process.
            current_stream: address of the stream in which the calling thread makes and
                reads gradients.

        Raises:
            WindowError: on every rank alike, if the GPUs' memory cannot be shared.
        """
        if topology.world.size != topology.node.size:
            raise WindowError("GPUs of several nodes are not served yet")
        self.layout = layout
        self._device = device
        self._monitored = topology.monitor(timeout_s, "a gradient exchange")
        self._current_stream = current_stream
        self._window = on_every_rank(topology, lambda: NodeWindow(topology.node, 0))
        # Of an exchange of nothing there is only the waiting for all to be ready.
        self._meeting = self._window.plan(0, 0, "float32", scale, local=False)
        # An event for each bucket, and one for when this rank has done its shards.
        events = len(layout.buckets) + 1
        # Memory is used again: also what the peers have queued there must be over.
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
        self._scale = np.float32(scale)
        self._shards = [
            vectors(bucket, topology.node.size, topology.node.rank) for bucket in layout.buckets
        ]
        self._tickets = Tickets()
        self._closed = False

    def enter_thread(self) -> None:
        """Make the arena's GPU the calling thread's.

        Otherwise the thread would go back to GPU 0 after each call, and take memory there.
        """
        self._runtime.setDevice(self._device)

    def ready(self, index: int) -> None:
        """Say that this rank's gradients of the buckets up to `index` are in the stream."""
        stream = self._current_stream()
        with self._on_device():
            for there in self._tickets.make_ready(index):
                self._runtime.eventRecord(self._own.events[there], stream)
        self._window.ready(self._tickets.of(index))

    def reduce(self, index: int) -> None:
        """Queue the reduction of this rank's shard of bucket `index`; buckets come in order.

        Raises:
            StallError: ranks did not arrive in time, or ended.
        """
        if not self._tickets.is_ready(index):
            self.ready(index)
        ticket = self._tickets.of(index)
        self._monitored(lambda t: self._window.reduce(self._meeting, ticket, t))
        first, count = self._shards[index]
        blocks = min(self._most_blocks, max(1, -(-count // _THREADS)))
        arguments = (self._memory, np.int32(len(self._events)), np.uint64(first))
        with self._on_device():
            for events in self._events:
                self._runtime.streamWaitEvent(self._stream.ptr, events[index])
            with self._stream:
                self._kernels[self.layout.buckets[index].dtype](
                    (blocks,), (_THREADS,), (*arguments, np.uint64(count), self._scale)
                )

    def finish(self) -> None:
        """Have the current stream wait until every rank has reduced its shards.

        Raises:
            StallError: ranks did not arrive in time, or ended.
        """
        if not self.layout.buckets:
            return
        ticket = self._tickets.finish(len(self.layout.buckets))
        stream = self._current_stream()
        with self._on_device():
            self._runtime.eventRecord(self._own.events[-1], self._stream.ptr)
            self._window.done(ticket)
            self._monitored(lambda t: self._window.finish(ticket, t))
            for events in self._events:
                self._runtime.streamWaitEvent(stream, events[-1])

    def explain(self) -> str:
        return (
            f"on GPUs of one node: {len(self._events)} ranks, each its shard straight from its "
            "peers' memory (CUDA IPC)"
        )

    def close(self) -> None:
        """Wait some seconds for the node's ranks to close theirs, then close the peers' memory."""
        if self._closed:
            return
        self._closed = True
        # In the middle of a round the others must not mistake this for work that is done.
        if not self._tickets.is_ready(0):
            with self._on_device():
                self._runtime.deviceSynchronize()
            self._window.done(_LEAVING)
            # A rank that ended or is late needs nothing more of this rank's memory.
            with suppress(TimeoutError, ProcessLookupError):
                self._window.finish(_LEAVING, _LEAVE_WITHIN_S)
        self._close_peers()

    def hurry(self, within_s: float) -> bool:
        """Nothing: `close` waits for some seconds only; the program must not end before."""
        return True

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
                module = cupy.RawModule(code=_KERNELS.read_text(encoding="utf-8"))
                module.compile()  # now, and not in the first step
                self._kernels = {name: module.get_function(f"reduce_{name}") for name in SERVED}
                self._stream = cupy.cuda.Stream(non_blocking=True)
                self._memory = cupy.asarray([m.address for m in everybodys], dtype=np.uint64)
                self._runtime.deviceSynchronize()
            self._most_blocks = _BLOCKS_A_MULTIPROCESSOR * self._runtime.deviceGetAttribute(
                self._runtime.cudaDevAttrMultiProcessorCount, device
            )

    def _close_peers(self) -> None:
        while self._peers:
            self._peers.pop().close()


def vectors(bucket: Bucket, size: int, rank: int) -> tuple[int, int]:
    """Where the shard of `rank` of `size` begins in the arena, and its length, in 16 bytes."""
    item_bytes = DTYPES[bucket.dtype].item_bytes
    begin, end = shard(bucket.count, size, rank, item_bytes)
    first_byte = bucket.offset_bytes + begin * item_bytes
    return first_byte // _VECTOR_BYTES, (end - begin) * item_bytes // _VECTOR_BYTES
