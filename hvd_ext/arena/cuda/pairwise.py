"""Sums within a node, with one peer at a time: for GPUs that PCIe connects.

The usual kernel reads from and writes to all peers at once, which NVLink carries and PCIe does
not: there the bandwidth collapses (flashinfer#4393). Here a rank copies its shard from its peers in
the order of a pairwise exchange (Thakur, Rabenseifner, Gropp: Optimization of Collective
Communication Operations in MPICH, 2005): from rank + 1, then rank + 2, and so on. While the ranks
stay in step, one stream enters each GPU and one leaves it. The same kernel sums the copies in the
order of the ranks, so the bits are the same. The sum is copied to the peers in the same order.

All of it is queued on one stream. A second one, for the copies to the peers, would add a stream in
each direction, and the scratch memory would need events before it is used again. On several nodes,
a sum goes to the peers on another stream, when the other nodes' shares have come. Meanwhile this
stream may copy the shards of the next bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hvd_ext.arena.cuda.ipc import Allocation, or_window_error
from hvd_ext.arena.cuda.kernels import VECTOR_BYTES, on_gpu
from hvd_ext.shm.layout import LINE_BYTES, align_up
from hvd_ext.units import MIB

if TYPE_CHECKING:
    from hvd_ext.arena.cuda.kernels import Kernels

# Copies of a whole shard take as much memory as the bucket. So much serves a bucket of the usual
# size in one piece; the shard of a larger one, as of a long embedding, goes in several.
SCRATCH_BYTES = 16 * MIB


def order_of_peers(rank: int, size: int) -> list[int]:
    """Return the other ranks of a node in the order in which `rank` exchanges with them."""
    return [*range(rank + 1, size), *range(rank)]


class Pairwise:
    """Sums shards from copies in scratch memory, and copies the sums to the peers."""

    def __init__(
        self,
        device: int,
        kernels: Kernels,
        addresses: Sequence[int],
        rank: int,
        longest_bytes: int,
    ) -> None:
        """Allocate the scratch memory, after all ranks of the node did `settle`.

        Args:
            device: ordinal of this rank's GPU.
            kernels: of this GPU.
            addresses: where the memory of each of the node's ranks begins.
            rank: of this rank in the node.
            longest_bytes: length of its longest shard.

        Raises:
            WindowError: there is not enough memory.
        """
        size = len(addresses)
        self._kernels, self._addresses, self._rank = kernels, addresses, rank
        most_bytes = align_up(-(-SCRATCH_BYTES // size))
        self._piece_bytes = max(LINE_BYTES, min(align_up(longest_bytes), most_bytes))
        with or_window_error(f"memory of GPU {device} for copies of the peers' shards"):
            import cupy

            self._runtime: Any = cupy.cuda.runtime
            with cupy.cuda.Device(device):
                self._scratch = Allocation(self._runtime, device, size * self._piece_bytes)
                first, step = self._scratch.address, self._piece_bytes
                # One for each rank, so that one list of addresses serves every bucket; the sum
                # replaces the first copy.
                self._copies = [first + index * step for index in range(size)]
                self._memories = on_gpu(self._copies), on_gpu(self._copies[:1])
                self._runtime.deviceSynchronize()

    def sum(
        self, dtype: str, shard: tuple[int, int], to_peers: bool, scale: float, stream: Any
    ) -> None:
        """Queue the sum of this rank's shard of a bucket.

        Args:
            dtype: one of SERVED.
            shard: its begin and its end in each rank's memory, in bytes.
            to_peers: whether the peers receive the sum, too.
            scale: factor of the sum.
            stream: CuPy's, of this GPU.
        """
        begin, end = shard
        for first in range(begin, end, self._piece_bytes):
            length = min(self._piece_bytes, end - first)
            self._copy_from_ranks(first, length, stream.ptr)
            part = 0, length // VECTOR_BYTES
            self._kernels.sum(dtype, self._memories, part, scale, stream)
            self._copy_sum(first, length, to_peers, stream.ptr)

    def _copy_from_ranks(self, first: int, length: int, stream: int) -> None:
        for rank in (self._rank, *self._peers()):
            self._copy(self._copies[rank], self._addresses[rank] + first, length, stream)

    def _copy_sum(self, first: int, length: int, to_peers: bool, stream: int) -> None:
        for rank in (self._rank, *(self._peers() if to_peers else ())):
            self._copy(self._addresses[rank] + first, self._copies[0], length, stream)

    def _peers(self) -> list[int]:
        return order_of_peers(self._rank, len(self._addresses))

    def _copy(self, to: int, source: int, length: int, stream: int) -> None:
        self._runtime.memcpyAsync(to, source, length, self._runtime.memcpyDeviceToDevice, stream)
