"""The arena of a DDP model on a GPU: DDP's buckets are copied to it and back on the device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from hvd_ext.arena.cuda.arena import DeviceArena
from hvd_ext.c10d.arena import explain_buckets, lay_out
from hvd_ext.dtypes import DTYPES
from hvd_ext.shm.layout import align_up
from hvd_ext.tensors import current_stream

if TYPE_CHECKING:
    import torch

    from hvd_ext.arena.config import ArenaConfig
    from hvd_ext.arena.layout import Bucket


class DeviceBucketArena(DeviceArena):
    """A DeviceArena for buckets that DDP has made; BucketArena is the same for the CPU.

    torch's allocator gives no memory that another process can open, so buckets are copied.

    Attributes:
        described: the buckets, as `describe` gives them.
        buffers: DDP's buckets when the arena was made; the arena keeps them, so no other buffer
            gets their address.
    """

    def __init__(
        self,
        config: ArenaConfig,
        described: Sequence[Bucket],
        buffers: Sequence[torch.Tensor],
        device: int,
    ) -> None:
        """Make the memory; collective.

        Args:
            config: how it exchanges.
            described: the buckets, the same on every rank.
            buffers: this rank's, 1-D.
            device: ordinal of the GPU that they are on.

        Raises:
            WindowError: on every rank, if the GPUs' memory cannot be shared.
        """
        self.described, self.buffers = tuple(described), tuple(buffers)
        # The kernel sums whole vectors: the padding of a bucket is zero on every rank.
        layout = lay_out(described, align_up, padded=True)
        stream = partial(current_stream, device)
        super().__init__(config, layout, 1.0 / config.topology.world.size, device, stream)
        self._sources = [buffer.data_ptr() for buffer in buffers]

    def is_known(self, index: int, buffer: torch.Tensor) -> bool:
        return index < len(self._sources) and self._sources[index] == buffer.data_ptr()

    def put(self, index: int, buffer: torch.Tensor) -> None:
        """Queue the copy of this rank's part of bucket `index`, and report that it is ready."""
        self._copy(index, self._own.address + self._offset(index), buffer.data_ptr())
        self.ready(index)

    def take(self, index: int, buffer: torch.Tensor) -> None:
        """Queue the copy of the mean of bucket `index` into a buffer, after `finish`."""
        self._copy(index, buffer.data_ptr(), self._own.address + self._offset(index))

    def _offset(self, index: int) -> int:
        return self.layout.buckets[index].offset_bytes

    def _copy(self, index: int, to: int, source: int) -> None:
        bucket = self.described[index]
        length = bucket.count * DTYPES[bucket.dtype].item_bytes
        kind, stream = self._runtime.memcpyDeviceToDevice, self._current_stream()
        with self._on_device():
            self._runtime.memcpyAsync(to, source, length, kind, stream)

    def explain(self) -> str:
        said = explain_buckets(self.described, "copied to memory of the GPU that peers can open")
        return f"{said}\n{super().explain()}"
