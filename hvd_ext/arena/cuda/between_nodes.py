"""Shards of gradients on GPUs on their way between the nodes: through pinned memory of the host."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_ext.arena.cuda.ipc import or_window_error
from hvd_ext.arena.inter_node import Channels
from hvd_ext.shm.regions import on_every_rank

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.allreduce.table import Table
    from hvd_ext.arena.layout import Bucket
    from hvd_ext.compression.formats import Format
    from hvd_ext.job.topology import Topology

# cudaEventBlockingSync | cudaEventDisableTiming: the host sleeps until it comes.
_HOST_EVENT_FLAGS = 0x01 | 0x02


class BetweenNodes:
    """A DeviceArena's shards on their way between the nodes, through pinned memory of the host.

    Attributes:
        channels: exchange them there.
    """

    def __init__(
        self,
        topology: Topology,
        buckets: Sequence[Bucket],
        shards: Sequence[tuple[int, int]],
        addresses: Sequence[int],
        device: int,
        reducing: Any,
        table: Table,
        timeout_s: float,
        format: Format,
        scale: float,
        setting: str,
    ) -> None:
        """Make the memory and the channels; collective over the world.

        Args:
            topology: nodes and ranks.
            buckets: of the arena.
            shards: as DeviceArena's.
            addresses: where the memory of each of the node's ranks begins.
            device: ordinal of this rank's GPU.
            reducing: the stream in which shards are reduced.
            table: as DeviceArena's, and so on.
            timeout_s: likewise.
            format: likewise.
            scale: what float32 is multiplied by where it is coded.
            setting: of `timeout_s`, for errors.

        Raises:
            WindowError: on every rank, if one has no pinned memory.
        """
        self._shards, self._addresses = shards, addresses
        self._device, self._rank = device, topology.node.rank
        self._reducing = reducing
        self._memories = on_every_rank(topology, self._pinned)
        self.channels = Channels(
            topology,
            "arena",
            buckets,
            self._shards,
            self._memories,
            table,
            format,
            timeout_s,
            scale,
            setting=setting,
        )

    def _pinned(self) -> list[Array]:
        lengths = [end - begin for begin, end in self._shards]
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
        """Have a shard go its way, once it is reduced; `end` is called with the last stream."""
        begin, host = self._shards[index][0], self._memories[index]
        source, kind = self._addresses[self._rank] + begin, self._runtime.memcpyDeviceToHost
        if host.nbytes:
            self._runtime.memcpyAsync(
                host.ctypes.data, source, host.nbytes, kind, self._reducing.ptr
            )
        self._runtime.eventRecord(self._copied[index], self._reducing.ptr)
        self.channels.take(
            index, partial(self._bring_back, index, end), partial(self._arrive, index)
        )

    def _arrive(self, index: int) -> None:
        """Wait on a channel's thread until the host has a shard: MPI knows no streams."""
        self._runtime.setDevice(self._device)
        self._runtime.eventSynchronize(self._copied[index])

    def _bring_back(self, index: int, end: Callable[[int], None] | None) -> None:
        """Give the node's ranks a shard."""
        begin, host = self._shards[index][0], self._memories[index]
        own = self._addresses[self._rank] + begin
        runtime, stream = self._runtime, self._back.ptr
        if host.nbytes:
            kind = runtime.memcpyHostToDevice
            runtime.memcpyAsync(own, host.ctypes.data, host.nbytes, kind, stream)
            kind = runtime.memcpyDeviceToDevice
            for rank, address in enumerate(self._addresses):
                if rank != self._rank:
                    runtime.memcpyAsync(address + begin, own, host.nbytes, kind, stream)
        if end is not None:
            end(stream)

    def wait(self) -> Any:
        """Wait until all shards were exchanged; the stream in which they are brought back."""
        self.channels.wait()
        return self._back
