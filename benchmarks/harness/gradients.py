"""Ways to exchange a model's gradients, alike in every benchmark that compares them."""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import BenchmarkError
from benchmarks.harness.shapes import Shape

Tensor = Any  # torch.Tensor: what launches the ranks does without torch


@dataclass(frozen=True)
class Contender:
    """A way to average gradients over all ranks.

    Attributes:
        tensors: the gradients, one float32 tensor for each shape.
        exchange: averages them in place; collective.
        sums: the result is the sum instead.
    """

    tensors: Sequence[Tensor]
    exchange: Callable[[], None]
    sums: bool = False


def start() -> bool:
    """Start Horovod; returns whether its background thread can change its priority.

    hvd_ext has that thread scheduled as idle, for good. For Horovod's own exchange
    it must have the usual one again, and raising it takes a privilege (root's, or
    `ulimit -e`). Without it the thread keeps its priority throughout.
    """
    import horovod.torch

    import hvd_ext.torch as hvd

    # Horovod waits as it does without hvd_ext, which has Open MPI yield; for both sides.
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "0")
    free = os.geteuid() == 0 or resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20
    (hvd.init if free else horovod.torch.init)()
    return free and hvd.local_size() <= len(os.sched_getaffinity(0))


def with_thread_idle(idle: bool, exchange: Callable[[], None]) -> Callable[[], None]:
    """The exchange, with Horovod's background thread scheduled as idle or not; see `start`."""
    from hvd_ext.torch.job.background import set_idle

    def exchange_so() -> None:
        set_idle(idle)
        exchange()

    return exchange_so


def horovod(shapes: Sequence[Shape]) -> Contender:
    """Horovod with its defaults: all tensors are submitted, then waited for."""
    import horovod.torch as hvd
    import torch

    tensors = [torch.zeros(shape) for shape in shapes]

    def exchange() -> None:
        handles = [
            hvd.allreduce_async_(t, name=f"t{i}", op=hvd.Average) for i, t in enumerate(tensors)
        ]
        for handle in handles:
            hvd.synchronize(handle)

    return Contender(tensors, exchange)


def hvd_ext(shapes: Sequence[Shape]) -> Contender:
    """DistributedOptimizer.synchronize(), with the gradients where it keeps them."""
    import torch

    import hvd_ext.torch as hvd

    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1))
    for _ in range(5):  # from here on every .grad lies in the arena, and stays there
        optimizer.synchronize()
    return Contender([p.grad for p in parameters], optimizer.synchronize)


def planned(count: int) -> Contender:
    """One float32 tensor of `count` elements, summed by a plan."""
    import torch

    import hvd_ext.torch as hvd

    tensor = torch.zeros(count)
    return Contender([tensor], hvd.plan_allreduce(tensor, hvd.Sum), sums=True)


def flat(shapes: Sequence[Shape]) -> Contender:
    """The MPI library's own allreduce of all gradients in one buffer, in place."""
    import torch
    from mpi4py import MPI

    counts = [math.prod(shape) for shape in shapes]
    buffer = torch.zeros(sum(counts))
    array = buffer.numpy()
    tensors = [t.view(s) for t, s in zip(buffer.split(counts), shapes, strict=True)]
    return Contender(tensors, lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array), sums=True)


def check(name: str, contender: Contender) -> None:
    """Exchange small whole numbers, so that any order of summing is exact; collective.

    Raises:
        BenchmarkError: a result is wrong.
    """
    import torch
    from mpi4py import MPI

    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    for index, tensor in enumerate(contender.tensors):
        tensor.copy_(_numbers(tensor, index) * size * (rank + 1))
    contender.exchange()
    factor = size * (size + 1) // 2 * (size if contender.sums else 1)
    for index, tensor in enumerate(contender.tensors):
        if not torch.equal(tensor.cpu(), (_numbers(tensor, index) * factor).float()):
            raise BenchmarkError(f"{name} gave a wrong result for tensor {index}")


def timed(exchange: Callable[[], None]) -> float:
    """Seconds until the last rank has its result; collective."""
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    start = time.perf_counter()
    exchange()
    return float(MPI.COMM_WORLD.allreduce(time.perf_counter() - start, op=MPI.MAX))


def _numbers(tensor: Tensor, index: int) -> Tensor:
    import torch

    return (torch.arange(tensor.numel()) % 97 + index).view(tensor.shape)
