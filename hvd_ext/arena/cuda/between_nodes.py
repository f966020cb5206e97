"""Shards of gradients on GPUs between the nodes: through pinned memory, by NCCL, or by MPI."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_ext.allreduce.carrier_names import MPI, NCCL, STAGED
from hvd_ext.arena.cuda.by_mpi import DeviceShard, arriving_bytes, on_device
from hvd_ext.arena.cuda.ipc import Allocation, or_window_error
from hvd_ext.arena.cuda.kernels import on_gpu
from hvd_ext.arena.cuda.pairwise import order_of_peers
from hvd_ext.arena.inter_node import Channels, meeting
from hvd_ext.shm.regions import on_every_rank

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.arena.config import ArenaConfig
    from hvd_ext.arena.cuda.kernels import Kernels, Memories
    from hvd_ext.arena.cuda.nccl import Communicator
    from hvd_ext.arena.layout import Bucket

# cudaEventBlockingSync | cudaEventDisableTiming: the host sleeps until the event is reached.
_HOST_EVENT_FLAGS = 0x01 | 0x02


class BetweenNodes:
    """A DeviceArena's shards on their way between the nodes.

    They go through pinned memory of the host, or stay on the device, where NCCL sums them or MPI
    sends them from. NCCL's kernels wait for each other: they are queued on one thread, in the order
    of the buckets, once the ranks of all nodes have met.

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
        carriers: Sequence[str],
        kernels: Kernels,
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
            carriers: NCCL, STAGED or MPI for each bucket.
            kernels: of this rank's GPU.

        Raises:
            WindowError: on every rank, if one has not enough memory.
        """
        self._shards, self._addresses = shards, addresses
        topology = config.topology
        self._device, self._rank = device, topology.node.rank
        self._reducing, self._kernels = reducing, kernels
        self._nccl, self._carriers = nccl, carriers
        self._memories = on_every_rank(topology, self._pinned)
        by_others: dict[int, Callable[..., Any]] = dict.fromkeys(self._carried_by(NCCL), meeting)
        if MPI in carriers:
            cross = topology.cross.rank, topology.cross.size
            of_mpi = on_every_rank(topology, lambda: self._for_mpi(buckets, *cross))
            by_others |= {index: shard.on for index, shard in of_mpi.items()}
        self.channels = Channels(
            config, "arena", buckets, shards, self._memories, scale, by_others=by_others
        )

    def _pinned(self) -> list[Array]:
        lengths = [
            end - begin if carrier == STAGED else 0
            for carrier, (begin, end) in zip(self._carriers, self._shards, strict=True)
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

    def _for_mpi(self, buckets: Sequence[Bucket], rank: int, nodes: int) -> dict[int, DeviceShard]:
        """Make the shards that MPI sends, and memory for what arrives: one is under way at a time.

        Args:
            buckets: of the arena.
            rank: of this node.
            nodes: how many there are.
        """
        lengths = {i: self._shards[i][1] - self._shards[i][0] for i in self._carried_by(MPI)}
        arriving_most = max(arriving_bytes(length, nodes) for length in lengths.values())
        found = {}
        with or_window_error("device memory for MPI's messages"):
            import cupy

            with cupy.cuda.Device(self._device):
                self._arrived = Allocation(self._runtime, self._device, arriving_most)
                arriving = on_device(self._arrived.address, arriving_most)
                for index, length in lengths.items():
                    whole = on_device(self._own(index), length)
                    found[index] = shard = DeviceShard(rank, nodes, whole, arriving)
                    memories = on_gpu(shard.terms), on_gpu([shard.own.ctypes.data])
                    given = buckets[index].dtype, memories, (0, shard.vectors)
                    by = self._kernels, self._runtime, self._back, self._copied[index]
                    shard.sum_terms = partial(_sum_terms, *given, *by)
                self._runtime.deviceSynchronize()
        return found

    def _carried_by(self, name: str) -> list[int]:
        return [index for index, carrier in enumerate(self._carriers) if carrier == name]

    def _own(self, index: int) -> int:
        """Where this rank's shard of a bucket begins in its own memory."""
        return self._addresses[self._rank] + self._shards[index][0]

    def take(self, index: int, end: Callable[[int], None] | None) -> None:
        """Send a shard between nodes once it is reduced; `end` is called with the last stream."""
        source, host = self._own(index), self._memories[index]
        kind = self._runtime.memcpyDeviceToHost
        if host.nbytes:
            self._runtime.memcpyAsync(
                host.ctypes.data, source, host.nbytes, kind, self._reducing.ptr
            )
        self._runtime.eventRecord(self._copied[index], self._reducing.ptr)
        if self._carriers[index] == NCCL:
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
            self._nccl.sum(self._own(index), (after - begin) // 4, self._back.ptr)
        self._to_peers(index, end)

    def _arrive(self, index: int) -> None:
        """Wait on a channel's thread until a shard is there: MPI knows no streams."""
        self._runtime.setDevice(self._device)
        self._runtime.eventSynchronize(self._copied[index])

    def _bring_back(self, index: int, end: Callable[[int], None] | None) -> None:
        """Give the node's ranks a shard that the host has, or that MPI has brought."""
        host, kind = self._memories[index], self._runtime.memcpyHostToDevice
        if host.nbytes:
            own, stream = self._own(index), self._back.ptr
            self._runtime.memcpyAsync(own, host.ctypes.data, host.nbytes, kind, stream)
        self._to_peers(index, end)

    def _to_peers(self, index: int, end: Callable[[int], None] | None) -> None:
        """Copy this rank's shard to the node's other ranks."""
        (begin, after), stream = self._shards[index], self._back.ptr
        kind = self._runtime.memcpyDeviceToDevice
        # Not all ranks to the first one at once.
        for rank in order_of_peers(self._rank, len(self._addresses)):
            if after > begin:
                to, own = self._addresses[rank] + begin, self._own(index)
                self._runtime.memcpyAsync(to, own, after - begin, kind, stream)
        if end is not None:
            end(stream)

    def wait(self) -> Any:
        """Wait until all shards are exchanged; returns the stream that copies them back."""
        self.channels.wait()
        return self._back


def _sum_terms(
    dtype: str,
    memories: tuple[Memories, Memories],
    part: tuple[int, int],
    kernels: Kernels,
    runtime: Any,
    stream: Any,
    event: int,
) -> None:
    """Sum a chunk of a shard over the nodes, and wait for it, as MPI is to send it."""
    kernels.sum(dtype, memories, part, 1.0, stream)
    runtime.eventRecord(event, stream.ptr)
    runtime.eventSynchronize(event)
