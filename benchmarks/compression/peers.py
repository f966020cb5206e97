"""Whom benchmarks.compression compares with: Horovod's fp16, and torch's hooks on Gloo."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import gloo, gradients, shapes

_BUCKET_BYTES = 25 * 2**20  # as DDP cuts them


def horovod_fp16(model: Sequence[shapes.Shape]) -> gradients.Contender:
    """Horovod with Compression.fp16."""
    import horovod.torch as hvd
    import torch

    tensors = [torch.zeros(shape) for shape in model]
    compression = hvd.Compression.fp16

    def exchange() -> None:
        handles = []
        for index, tensor in enumerate(tensors):
            half, context = compression.compress(tensor)
            handle = hvd.allreduce_async_(half, name=f"half{index}", op=hvd.Average)
            handles.append((tensor, handle, context))
        for tensor, handle, context in handles:
            tensor.copy_(compression.decompress(hvd.synchronize(handle), context))

    return gradients.Contender(tensors, exchange)


def gloo_fp16(model: Sequence[shapes.Shape]) -> gradients.Contender:
    """Gloo's work under torch's fp16_compress_hook, in DDP's buckets."""
    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    gloo.start(MPI.COMM_WORLD)
    counts = [math.prod(shape) for shape in model]
    buffer = torch.zeros(sum(counts))
    tensors = [t.view(s) for t, s in zip(buffer.split(counts), model, strict=True)]
    buckets = buffer.split(_BUCKET_BYTES // 4)

    def exchange() -> None:
        started = []
        for bucket in buckets:
            half = bucket.half().div_(MPI.COMM_WORLD.size)
            started.append((bucket, half, dist.all_reduce(half, async_op=True)))
        for bucket, half, work in started:
            work.wait()
            bucket.copy_(half)

    return gradients.Contender(tensors, exchange)


class _Bucket:
    """The interface of DDP's buckets for torch's hooks."""

    def __init__(self, index: int, gradients: list[Any], buffer: Any, is_last: bool) -> None:
        self._index, self._gradients, self._buffer = index, gradients, buffer
        self._is_last = is_last

    def index(self) -> int:
        return self._index

    def buffer(self) -> Any:
        return self._buffer

    def gradients(self) -> list[Any]:
        return self._gradients

    def is_last(self) -> bool:
        return self._is_last


def gloo_powersgd(model: Sequence[shapes.Shape], rank: int) -> gradients.Contender:
    """DDP's powerSGD_hook over Gloo, in its buckets."""
    import torch
    from mpi4py import MPI
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    gloo.start(MPI.COMM_WORLD)
    state = power.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
    groups: list[list[shapes.Shape]] = [[]]
    for shape in model:
        if sum(map(math.prod, groups[-1])) + math.prod(shape) > _BUCKET_BYTES // 4:
            groups.append([])
        groups[-1].append(shape)
    buckets = []
    for index, group in enumerate(g for g in groups if g):
        counts = [math.prod(shape) for shape in group]
        buffer = torch.zeros(sum(counts))
        views = [t.view(s) for t, s in zip(buffer.split(counts), group, strict=True)]
        buckets.append(_Bucket(index, views, buffer, is_last=False))
    buckets[-1]._is_last = True

    def exchange() -> None:
        # One after the other: each hook's second allreduce starts when its first has ended, in an
        # order of the rank's own, and Gloo would pair it with another bucket's.
        for bucket in buckets:
            power.powerSGD_hook(state, bucket).wait()

    for _ in range(3):  # the first ones do not compress
        exchange()
    return gradients.Contender([view for b in buckets for view in b.gradients()], exchange)
