"""Shards of gradients on GPUs on their way between the nodes: through pinned memory, or by NCCL."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_ext.arena.cuda.ipc import or_window_error
from hvd_ext.arena.inter_node import Channels
from hvd_ext.shm.regions import on_every_rank

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.arena.config import ArenaConfig
    from hvd_ext.arena.cuda.nccl import Communicator
    from hvd_ext.arena.layout import Bucket

# cudaEventBlockingSync | cudaEventDisableTiming: the host sleeps until the event is reached.
_HOST_EVENT_FLAGS = 0x01 | 0x02


class BetweenNodes:
    """A DeviceArena's shards on their way between the nodes.

    They go through pinned memory of the host, or NCCL sums them where they are. NCCL's kernels wait
    for each other, so one thread queues them, in the order of the buckets, once the ranks of all
    nodes have met.

    Attributes:
        channels: exchange shards in memory of the host, and let ranks meet.
    """

    def __init__(
        self,
        config: ArenaConfig,
        buckets: Sequence[Bucket],
        shards: Sequence[tuple[int, int]],
        addresses: Sequence[int],
        device: int,
        reducing: Any,
        scale: float,
        nccl: Communicator | None,
        by_nccl: Collection[int],
    ) -> None:
        """Make the memory and the channels; collective over the world.

        Args:
            config: see DeviceArena.
            buckets: of the arena.
            shards: see DeviceArena.
            addresses: where the memory of each of the node's ranks begins.
            device: ordinal of this rank's GPU.
            reducing: the stream in which shards are reduced.
            scale: what float32 is multiplied by where it is coded.
            nccl: this rank's rail.
            by_nccl: buckets that it sums.

        Raises:
            WindowError: on every rank, if one has no pinned memory.
        """
        self._shards, self._addresses = shards, addresses
        self._device, self._rank = device, config.topology.node.rank
        self._reducing = reducing
        self._nccl, self._by_nccl = nccl, by_nccl
        self._memories = on_every_rank(config.topology, self._pinned)
        self.channels = Channels(
            config, "arena", buckets, shards, self._memories, scale, met=by_nccl
        )

    def _pinned(self) -> list[Array]:
        lengths = [
            0 if index in self._by_nccl else end - begin
            for index, (begin, end) in enumerate(self._shards)
        ]
        with or_window_error("pinned memory of the host"):
            import cupy

            self._runtime = runtime = cupy.cuda.runtime
            with cupy.cuda.Device(self._device):
                # Copies back use a second stream, so that the next bucket is reduced meanwhile.
                self._back = cupy.cuda.Stream(non_blocking=True)
                self._copied = [runtime.eventCreateWithFlags(_HOST_EVENT_FLAGS) for _ in lengths]
                whole: Any = cupy.cuda.alloc_pinned_memory(max(1, sum(lengths)))
        memory = np.frombuffer(whole, np.uint8, sum(lengths))
        ends = itertools.accumulate(lengths)
        return [memory[end - length : end] for length, end in zip(lengths, ends, strict=True)]

    def take(self, index: int, end: Callable[[int], None] | None) -> None:
        """Send a shard between nodes once it is reduced; `end` is called with the last stream."""
        begin, host = self._shards[index][0], self._memories[index]
        source, kind = self._addresses[self._rank] + begin, self._runtime.memcpyDeviceToHost
        if host.nbytes:
            self._runtime.memcpyAsync(
                host.ctypes.data, source, host.nbytes, kind, self._reducing.ptr
            )
        self._runtime.eventRecord(self._copied[index], self._reducing.ptr)
        if index in self._by_nccl:
            self.channels.take(index, partial(self._sum_by_nccl, index, end))
            return
        self.channels.take(
            index, partial(self._bring_back, index, end), partial(self._arrive, index)
        )

    def _sum_by_nccl(self, index: int, end: Callable[[int], None] | None) -> None:
        """Queue the sum of a shard over the nodes, and give it to the node's ranks."""
        assert self._nccl is not None
        begin, after = self._shards[index]
        self._runtime.setDevice(self._device)
        self._runtime.streamWaitEvent(self._back.ptr, self._copied[index])
        if after > begin:
            own = self._addresses[self._rank] + begin
            self._nccl.sum(own, (after - begin) // 4, self._back.ptr)
        self._to_peers(index, end)

    def _arrive(self, index: int) -> None:
        """Wait on a channel's thread until the host has a shard: MPI cannot wait for streams."""
        self._runtime.setDevice(self._device)
        self._runtime.eventSynchronize(self._copied[index])

    def _bring_back(self, index: int, end: Callable[[int], None] | None) -> None:
        """Give the node's ranks a shard that the host has."""
        host, kind = self._memories[index], self._runtime.memcpyHostToDevice
        if host.nbytes:
            own = self._addresses[self._rank] + self._shards[index][0]
            self._runtime.memcpyAsync(own, host.ctypes.data, host.nbytes, kind, self._back.ptr)
        self._to_peers(index, end)

    def _to_peers(self, index: int, end: Callable[[int], None] | None) -> None:
        """Copy this rank's shard to the node's other ranks."""
        (begin, after), stream = self._shards[index], self._back.ptr
        own, kind = self._addresses[self._rank] + begin, self._runtime.memcpyDeviceToDevice
        for rank, address in enumerate(self._addresses):
            if rank != self._rank and after > begin:
                self._runtime.memcpyAsync(address + begin, own, after - begin, kind, stream)
        if end is not None:
            end(stream)

    def wait(self) -> Any:
        """Wait until all shards are exchanged; returns the stream that copies them back."""
        self.channels.wait()
        return self._back
