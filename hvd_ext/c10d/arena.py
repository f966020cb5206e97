"""The arena of a DDP model: DDP's own buckets if they can be shared, otherwise copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from hvd_ext.arena.host import HostArena
from hvd_ext.arena.layout import Bucket, Layout, Span
from hvd_ext.c10d.window import StorageWindow, pages
from hvd_ext.dtypes import DTYPES
from hvd_ext.shm.layout import align_up
from hvd_ext.tensors import dtype_name
from hvd_ext.units import format_bytes

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.arena.config import ArenaConfig
    from hvd_ext.shm.window import NodeWindow


def describe(bucket: Any) -> Bucket:
    """The layout of a `dist.GradBucket`, as if it lay at the start of an arena."""
    buffer = bucket.buffer()
    dtype = dtype_name(buffer.dtype)
    item = DTYPES[dtype].item_bytes
    spans = []
    for index, gradient in enumerate(bucket.gradients()):
        count, first = gradient.numel(), gradient.storage_offset() - buffer.storage_offset()
        columns = count // gradient.shape[0] if gradient.dim() > 1 and count else 0
        spans.append(Span(index, first * item, count, columns))
    return Bucket(dtype, 0, buffer.numel(), tuple(spans))


class BucketArena(HostArena):
    """A HostArena for buckets that DDP has made.

    Attributes:
        described: the buckets, as `describe` gives them.
        buffers: DDP's buckets when the arena was made; the arena keeps them, so no other buffer
            gets their address.
        shared: whether the arena's memory is that of these buckets.
    """

    def __init__(
        self,
        config: ArenaConfig,
        described: Sequence[Bucket],
        buffers: Sequence[torch.Tensor],
        shared: bool,
    ) -> None:
        """Share or make the memory; collective.

        Args:
            config: how it exchanges.
            described: the buckets, the same on every rank.
            buffers: this rank's, 1-D.
            shared: whether to share these themselves.

        Raises:
            WindowError: on every rank, if some cannot share memory.
        """
        self.described, self.buffers, self.shared = tuple(described), tuple(buffers), shared
        layout = lay_out(described, pages if shared else align_up)
        super().__init__(config, layout, 1.0 / config.topology.world.size)
        self._addresses = [buffer.data_ptr() for buffer in buffers]
        self._copies = [self._view(bucket) for bucket in layout.buckets]

    def _make_window(self, node: MPI.Comm) -> NodeWindow:
        if self.shared:
            return StorageWindow(node, self.buffers)
        return super()._make_window(node)

    def _view(self, bucket: Bucket) -> torch.Tensor:
        memory = self.data[bucket.offset_bytes :][: bucket.message_bytes]
        return torch.from_numpy(memory).view(getattr(torch, bucket.dtype))

    def is_known(self, index: int, buffer: torch.Tensor) -> bool:
        """Whether a buffer is the one that bucket `index` was made for."""
        return index < len(self._addresses) and self._addresses[index] == buffer.data_ptr()

    def put(self, index: int, buffer: torch.Tensor) -> None:
        """Put this rank's part of bucket `index` into the arena, and report that it is ready."""
        if not self._in_place(index, buffer):
            self._copies[index].copy_(buffer)
        self.ready(index)

    def take(self, index: int, buffer: torch.Tensor) -> None:
        """Copy the mean of bucket `index` into a buffer, after `finish`."""
        if not self._in_place(index, buffer):
            buffer.copy_(self._copies[index])

    def _in_place(self, index: int, buffer: torch.Tensor) -> bool:
        return self.shared and self.is_known(index, buffer)

    def explain(self) -> str:
        where = "reduced where they lie" if self.shared else "copied to shared memory and back"
        return f"{explain_buckets(self.described, where)}\n{super().explain()}"


def explain_buckets(described: Sequence[Bucket], where: str) -> str:
    """Report how many buckets of DDP's there are, of what sizes, and where they are reduced."""
    sizes = [bucket.message_bytes for bucket in described]
    least, most = format_bytes(min(sizes)), format_bytes(max(sizes))
    which = f"{len(sizes)} of {least} to {most}" if len(sizes) > 1 else f"one of {most}"
    return f"DDP's buckets: {which}, {where}"


def lay_out(
    described: Sequence[Bucket], round_up: Callable[[int], int], padded: bool = False
) -> Layout:
    """Lay out buckets one after the other.

    Args:
        described: the buckets, each as if it lay at the start.
        round_up: returns the bytes that a bucket takes.
        padded: whether the additional bytes count as elements, too.
    """
    placed, end = [], 0
    for bucket in described:
        spans = tuple(
            Span(s.parameter, end + s.offset_bytes, s.count, s.columns) for s in bucket.spans
        )
        taken = round_up(bucket.message_bytes)
        count = taken // DTYPES[bucket.dtype].item_bytes if padded else bucket.count
        placed.append(Bucket(bucket.dtype, end, count, spans))
        end += taken
    return Layout(tuple(placed), end)
