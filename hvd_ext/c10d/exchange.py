"""The exchange of a DDP model's gradients: the communication hook's work for each bucket.

DDP calls the hook for its buckets in one fixed order on every rank. A thread exchanges all buckets
but the last; with the last one the caller waits, so that errors are raised in `backward()`. Buckets
that are new (in the first step, and after DDP has rebuilt them) are planned with the last one, when
all of them are known.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from hvd_ext.arena.config import ArenaConfig
from hvd_ext.arena.cuda.carriers import prepare
from hvd_ext.arena.layout import Bucket
from hvd_ext.c10d.arena import BucketArena, describe
from hvd_ext.c10d.device_arena import DeviceBucketArena
from hvd_ext.compression.formats import NONE, Format
from hvd_ext.errors import MismatchError
from hvd_ext.events import region
from hvd_ext.job.closing import close_later
from hvd_ext.job.progress_thread import ProgressThread, Work, wait_for
from hvd_ext.shm.regions import WindowError
from hvd_ext.tensors import current_stream

# After these steps ranks ask each other whether DDP has moved its buckets. It rebuilds them after
# the first step, or with static_graph after the second. A bucket that has moved is copied until
# then. A format's residual would be lost when buckets move, so formats that keep one are used only
# after that.
_ASKED_AFTER = (2, 4)
_SETTLED_AFTER = _ASKED_AFTER[-1]

T = TypeVar("T")
log = logging.getLogger("hvd_ext")


class Exchange:
    """The result of `attach`: the exchange of one DDP model's gradients."""

    def __init__(
        self,
        config: ArenaConfig,
        group: dist.ProcessGroup,
        device: int | None = None,
        refusal: str = "",
    ) -> None:
        """Begin without any exchange; collective.

        Args:
            config: how arenas of the group's ranks exchange; their nodes may differ in size.
            group: DDP's, which serves where ranks cannot share memory.
            device: ordinal of the GPU that gradients are on; None: the CPU.
            refusal: why DDP's group is to serve, the same on every rank, or empty.
        """
        self._config, self._group = config, group
        self._topology, self._format = config.topology, config.format
        self._device = device
        self._arena: BucketArena | DeviceBucketArena | None = None
        if not config.topology.homogeneous:
            refusal = refusal or "nodes have different numbers of ranks"
        self._shared = device is None and not refusal
        self._why_copied = self._why_not = ""
        if refusal:
            self._give_way(refusal)
        self._steps = 0
        self._progress: ProgressThread | None = None
        self._pending: deque[Future[None]] = deque()
        # This step's buckets, their futures, and the buckets that are not planned yet.
        self._buffers: list[torch.Tensor] = []
        self._futures: list[Any] = []
        self._new: list[Bucket] = []

    def explain(self) -> str:
        """Return how gradients are exchanged, and why."""
        if self._why_not:
            return f"by DDP's own process group: {self._why_not}"
        if self._arena is None:
            return "not exchanged yet"
        text = self._arena.explain()
        if self._why_copied:
            text += f"\nbuckets are copied: {self._why_copied}"
        if self._format.has_residual and self._steps < _SETTLED_AFTER:
            text += f"\n{self._format.name}: from step {_SETTLED_AFTER + 1} on"
        return text

    def exchange(self, bucket: Any) -> Any:
        """Exchange a bucket; DDP calls this.

        Args:
            bucket: a `dist.GradBucket`.

        Returns:
            A future of the bucket's buffer, once it holds the mean.

        Raises:
            StallError: ranks did not arrive in time, or ended.
            MismatchError: ranks have different buckets.
        """
        if self._why_not:
            return allreduce_hook(self._group, bucket)
        place = bucket.buffer().device
        # A program that waits for the future waits for the queued copies, too.
        future: Any = torch.futures.Future(devices=None if place.type == "cpu" else [place])
        self._buffers.append(bucket.buffer())
        self._futures.append(future)
        self._begin(bucket)
        if bucket.is_last():
            with region("exposed", kind="communication"):
                self._end_step()
        return future

    def close(self) -> None:
        """End the threads after the started exchanges; the garbage collector may call this."""
        arena, self._arena = self._arena, None
        progress, self._progress = self._progress, None
        if arena is not None:
            close_later(progress or ProgressThread(), [arena])

    def __del__(self) -> None:
        self.close()

    def _begin(self, bucket: Any) -> None:
        """Start the exchange of a bucket, or note that it is new."""
        index, arena = bucket.index(), self._arena
        if self._new or arena is None or not _fits(arena, bucket):
            if not self._new and index and arena is not None:
                self._end_early(arena, index)
            self._new.append(describe(bucket))
        elif not bucket.is_last():
            arena.put(index, bucket.buffer())
            self._submit(partial(arena.reduce, index))

    def _submit(self, work: Work) -> None:
        if self._progress is None:
            assert self._arena is not None
            self._progress = ProgressThread()
            self._pending.append(self._progress.submit(self._arena.enter_thread))
        self._pending.append(self._progress.submit(work))

    def _end_step(self) -> None:
        """Exchange the remaining buckets, and copy the means to DDP's buckets."""
        first, count = 0, len(self._buffers)
        if self._new:
            first = count - len(self._new)
            done = self._arena.described[:first] if self._arena else ()
            self._plan([*done, *self._new])
        arena = self._arena
        if arena is None:
            self._by_process_group(self._buffers[first:])
        else:
            wait_for(self._pending)
            for index in range(first if self._new else count - 1, count):
                arena.put(index, self._buffers[index])
                arena.reduce(index)
            arena.finish()
            for index in range(first, count):
                arena.take(index, self._buffers[index])
            del arena  # its memory may be needed
        self._steps += 1
        if self._steps in _ASKED_AFTER and not self._why_not:
            self._plan_again_if_moved()
        for future, buffer in zip(self._futures, self._buffers, strict=True):
            future.set_result(buffer)
        self._buffers, self._futures, self._new = [], [], []

    def _end_early(self, arena: BucketArena | DeviceBucketArena, count: int) -> None:
        """Copy the means to DDP's first `count` buckets; the round's other buckets are gone."""
        wait_for(self._pending)
        for index in range(count, len(arena.described)):
            arena.reduce(index)
        arena.finish()
        for index in range(count):
            arena.take(index, self._buffers[index])

    def _plan_again_if_moved(self) -> None:
        assert self._arena is not None
        moved = not all(self._arena.is_known(i, buffer) for i, buffer in enumerate(self._buffers))
        moved |= self._steps == _SETTLED_AFTER and self._format.has_residual
        if any(self._ask(moved)):
            self._plan(self._arena.described)

    def _plan(self, described: Sequence[Bucket]) -> None:
        """Make the arena for this step's buckets, if ranks can share memory; collective."""
        said = (len(described), hashlib.sha256(repr(described).encode()).hexdigest())
        everyones = self._ask(said)
        ranks = self._topology.ranks
        for rank, other in zip(ranks, everyones, strict=True):
            if other != everyones[0]:
                raise MismatchError(
                    f"ranks have different buckets: rank {rank} has {other[0]}, where rank "
                    f"{ranks[0]} has {everyones[0][0]}; give DDP the same model and bucket_cap_mb "
                    "on every rank"
                )
        if self._arena is not None:
            self._arena.close()
            self._arena = None
        settled = self._steps >= _SETTLED_AFTER or not self._format.has_residual
        while not self._why_not and self._arena is None:
            try:
                self._arena = self._make(described, self._format if settled else NONE)
            except WindowError as error:  # on every rank alike
                self._give_way(str(error))

    def _make(self, described: Sequence[Bucket], format: Format) -> BucketArena | DeviceBucketArena:
        config = replace(self._config, format=format)
        if self._device is None:
            return BucketArena(config, described, self._buffers, self._shared)
        config = prepare(config, self._device, partial(current_stream, self._device))
        return DeviceBucketArena(config, described, self._buffers, self._device)

    def _give_way(self, reason: str) -> None:
        """Copy the buckets if they cannot be shared; leave them to DDP if they cannot be copied."""
        if self._shared:
            self._shared, self._why_copied = False, reason
            text = f"DDP's buckets are copied to shared memory and back: {reason}"
        else:
            self._why_not = reason
            text = f"falling back to DDP's own process group: {reason}"
        if self._topology.world.rank == 0:
            log.warning("hvd_ext: %s", text)

    def _by_process_group(self, buffers: Sequence[torch.Tensor]) -> None:
        size = self._topology.world.size
        for buffer in buffers:
            dist.all_reduce(buffer.div_(size), group=self._group)

    def _ask(self, mine: T) -> list[T]:
        """Gather the statement of each rank; collective.

        Raises:
            StallError: ranks did not reach this in time; names them.
        """
        within_s, setting = self._config.timeout_s, self._config.setting
        return self._topology.allgather(mine, within_s, "a gradient exchange", setting)


def _fits(arena: BucketArena | DeviceBucketArena, bucket: Any) -> bool:
    """Whether a bucket is one of the arena's; the same on every rank."""
    index, described = bucket.index(), arena.described
    if index >= len(described) or bucket.is_last() != (index == len(described) - 1):
        return False
    return arena.is_known(index, bucket.buffer()) or describe(bucket) == described[index]
