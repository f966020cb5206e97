"""An optimizer's arenas, the gradients in them, and the thread that reduces them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.utils.dlpack import from_dlpack

from hvd_ext.errors import UsageError
from hvd_ext.job.closing import close_later
from hvd_ext.job.progress_thread import ProgressThread, wait_for
from hvd_ext.torch.reduction.slot import BucketState, GradientSlot

if TYPE_CHECKING:
    from hvd_ext.arena.protocol import Arena


Observer = Callable[[Sequence[GradientSlot]], None]


@dataclass(frozen=True, eq=False)
class PlacedArena:
    """An arena, and the gradients in it.

    Attributes:
        arena: reduces the gradients.
        slots: the gradients, in the order of the arena's parameters.
        memory: the arena's bytes as a tensor, of which the gradients are views.
        address: address of `memory` when the gradients were placed.
    """

    arena: Arena
    slots: Sequence[GradientSlot]
    memory: torch.Tensor
    address: int


class PlacedArenas:
    """The arenas of one optimizer, and the thread that reduces their buckets.

    Attributes:
        arenas: all of them.
        placed: the same, with their gradients.
        observer: is given the gradients of each bucket before it is exchanged.
    """

    def __init__(self) -> None:
        self.arenas: list[Arena] = []
        self.placed: list[PlacedArena] = []
        self.observer: Observer | None = None
        self._progress = ProgressThread()
        self._pending: deque[Future[None]] = deque()
        # A dropped optimizer must leave no threads, which would outlive MPI. Only the arenas are
        # kept until then, because gradients would keep the optimizer alive.
        self._close = weakref.finalize(self, close_later, self._progress, self.arenas)
        self._close.atexit = False

    def place(self, arena: Arena, slots: Sequence[GradientSlot]) -> list[BucketState]:
        """Give slots their memory in the arena, in the order of its parameters."""
        self.arenas.append(arena)
        self._progress.submit(arena.enter_thread)
        memory = from_dlpack(arena.data)
        self.placed.append(PlacedArena(arena, slots, memory, memory.data_ptr()))
        buckets: list[BucketState] = []
        for index, layout in enumerate(arena.layout.buckets):
            bucket = BucketState(arena, index, layout, len(layout.spans))
            for span in layout.spans:
                slots[span.parameter].place(memory, span.offset_bytes, bucket)
            buckets.append(bucket)
        return buckets

    def check_unmoved(self) -> None:
        """Check that the memory of gradients is still that of their arenas.

        Raises:
            UsageError: torch has moved it.
        """
        if any(placed.memory.data_ptr() != placed.address for placed in self.placed):
            raise UsageError(
                "the gradients' memory was moved, as model.share_memory() does: call that before "
                "DistributedOptimizer()"
            )

    def submit(self, bucket: BucketState) -> None:
        """Let the thread reduce a bucket, after those that were submitted before."""
        self._show(bucket)
        bucket.arena.ready(bucket.index)
        self._pending.append(self._progress.submit(partial(bucket.arena.reduce, bucket.index)))

    def wait(self) -> None:
        """Wait until everything that was submitted is reduced."""
        wait_for(self._pending)

    def reduce_rest(self, buckets: Sequence[BucketState]) -> None:
        """Reduce the buckets that were not submitted, and wait for those that were."""
        for bucket in buckets:
            self._show(bucket)
        for arena in self.arenas:
            arena.ready(len(arena.layout.buckets) - 1)
        # The rest is reduced here, because this thread has a core and no other work.
        self.wait()
        for bucket in buckets:
            bucket.arena.reduce(bucket.index)

    def _show(self, bucket: BucketState) -> None:
        if self.observer is not None:
            placed = next(one for one in self.placed if one.arena is bucket.arena)
            self.observer([placed.slots[span.parameter] for span in bucket.layout.spans])

    def finish(self) -> None:
        """Wait until the arenas have reduced all submitted buckets."""
        for arena in self.arenas:
            arena.finish()

    def discard(self) -> None:
        """Close the arenas, between two steps; others may be placed then."""
        for arena in self.arenas:
            arena.close()
        self.arenas.clear()
        self.placed.clear()

    def close(self) -> None:
        """End the thread, after the exchanges that were started; see `wait_until_closed`."""
        self._close()
