"""A rank of benchmarks.training_step: trains, a turn at a time, and records its times."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import BenchmarkError, gloo
from benchmarks.training_step.cases import CASES, Training
from testbed import turns, usage

# Each rank goes round these, so that there is something to learn.
_BATCHES = 4


def work(model: str, exchange: str) -> None:
    """Be a rank that trains a model with an exchange, on request."""
    turns.take_turns(lambda: _Rank(model, exchange).train)


@dataclass
class _Exchange:
    """How this rank's training is tied to that of the others.

    Attributes:
        rank: of the world.
        threads: that the library runs, by id.
        tie: gives the network to call, and the optimizer to step.
        after_step: is called at the end of each step.
        passes: backward passes of a step, of whose losses the step takes the mean.
        adds_passes: gradients of passes are added, so each loss is divided by their number.
        folder: that the exchange writes to.
    """

    rank: int
    tie: Callable[[Training], tuple[Any, Any]]
    threads: dict[int, str] = field(default_factory=dict)
    after_step: Callable[[], None] = lambda: None
    passes: int = 1
    adds_passes: bool = False
    folder: tempfile.TemporaryDirectory[str] | None = None


class _Rank:
    def __init__(self, model: str, exchange: str) -> None:
        import torch

        torch.set_num_threads(1)
        self.exchange = _EXCHANGES[exchange]()
        self.held_bytes = usage.memory_bytes()
        torch.manual_seed(1)
        self.training = CASES[model].training()
        self.network, self.optimizer = self.exchange.tie(self.training)
        generator = torch.Generator().manual_seed(self.exchange.rank)
        self.batches = [self.training.samples(generator) for _ in range(_BATCHES)]
        self.losses: list[float] = []  # of every step so far

    def train(self, task: dict[str, int]) -> dict[str, Any]:
        """Take `steps` steps and one before that, which finds other jobs' data in the caches."""
        self._step()
        before = usage.by_thread(self.exchange.threads)
        began_s = time.perf_counter()
        marks_s = [self._step() for _ in range(task["steps"])]
        after = usage.by_thread(self.exchange.threads)
        if not all(map(math.isfinite, self.losses)):
            raise BenchmarkError(f"the losses are {self.losses}")
        return {
            "rank": self.exchange.rank,
            "began_s": began_s,
            "marks_s": marks_s,
            "losses": self.losses,
            "usage": usage.since(before, after),
            "parameters": [p.numel() for p in self.training.parameters],
            "memory_bytes": self._memory_bytes(),
            "optimizer_state_bytes": _state_bytes(self.optimizer),
        }

    def _memory_bytes(self) -> dict[str, int]:
        """The most that a step adds to what this rank held before the network was built.

        Looked at after forward, after backward and at the end, in a step that is not timed.
        """
        found: list[dict[str, int]] = []
        self._step(lambda: found.append(usage.memory_bytes()))
        most = max(found, key=lambda one: sum(one.values()))
        return {kind: most[kind] - self.held_bytes[kind] for kind in most}

    def _step(self, look: Callable[[], None] = lambda: None) -> tuple[float, float, float]:
        """Returns when forward was over, backward, and all; calls `look` at each."""
        self.optimizer.zero_grad()
        divisor = self.exchange.passes if self.exchange.adds_passes else 1
        for _ in range(self.exchange.passes - 1):
            (self._loss() / divisor).backward()
        loss = self._loss() / divisor
        forward_s = time.perf_counter()
        look()
        loss.backward()
        backward_s = time.perf_counter()
        look()
        self.optimizer.step()
        self.exchange.after_step()
        self.losses.append(divisor * float(loss.detach()))
        ended_s = time.perf_counter()
        look()
        return forward_s, backward_s, ended_s

    def _loss(self) -> Any:
        """The loss of the next batch."""
        x, y = self.batches[0]
        self.batches.append(self.batches.pop(0))
        return self.training.loss(self.network(x), y)


def _state_bytes(optimizer: Any) -> int:
    """Bytes of an optimizer besides parameters and gradients, on this rank."""
    # ZeroRedundancyOptimizer's is that of the one it holds; hvd_ext's sharded one says it.
    holder = getattr(optimizer, "optim", optimizer)
    return sum(map(_bytes_in, getattr(holder, "own_state", holder.state).values()))


def _bytes_in(state: Any) -> int:
    import torch

    tensors: Iterable[Any] = state.values() if isinstance(state, dict) else ()
    # FSDP's tensors are as long as the whole; a rank holds its part.
    tensors = (t.to_local() if hasattr(t, "to_local") else t for t in tensors)
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))


def _none() -> _Exchange:
    from mpi4py import MPI

    return _Exchange(
        MPI.COMM_WORLD.rank,
        lambda training: (training.network, training.optimizer(training.parameters)),
    )


def _barrier() -> _Exchange:
    from mpi4py import MPI

    exchange = _none()
    exchange.after_step = MPI.COMM_WORLD.Barrier
    return exchange


def _ddp(
    *, zero: bool = False, attached: str = "", halves: bool = False, backend: str = "gloo"
) -> _Exchange:
    """DDP.

    Args:
        zero: with ZeroRedundancyOptimizer.
        attached: the compression of hvd_ext's hook; "": without it.
        halves: with torch's hook for float16.
        backend: of torch.distributed.
    """
    import torch
    from mpi4py import MPI
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from torch.distributed.optim import ZeroRedundancyOptimizer

    gloo.start(MPI.COMM_WORLD, backend)

    def tie(training: Training) -> tuple[Any, Any]:
        # Horovod and hvd_ext leave the statistics of batch norms to each rank, too.
        network = torch.nn.parallel.DistributedDataParallel(
            training.network, gradient_as_bucket_view=True, broadcast_buffers=False
        )
        if attached:
            from hvd_ext import c10d

            c10d.attach(network, attached)
        if halves:
            network.register_comm_hook(None, fp16_compress_hook)
        plain: Any = training.optimizer
        if not zero:
            return network, plain(training.parameters)
        return network, ZeroRedundancyOptimizer(
            training.parameters,
            optimizer_class=plain.func,
            parameters_as_bucket_view=True,
            **plain.keywords,
        )

    return _Exchange(MPI.COMM_WORLD.rank, tie)


def _fsdp(*, used: bool = False) -> _Exchange:
    import torch
    from mpi4py import MPI
    from torch.distributed.fsdp import fully_shard

    gloo.start(MPI.COMM_WORLD)

    def tie(training: Training) -> tuple[Any, Any]:
        network = training.network
        for child in network.children():
            # FSDP gathers a child's parameters in its forward(), which a ParameterList lacks.
            holds_parameters = any(True for _ in child.parameters())
            if holds_parameters and not isinstance(child, torch.nn.ParameterList):
                fully_shard(child)
        fully_shard(network)
        if used:
            from hvd_ext.c10d import fsdp

            fsdp.use(network)
        return network, training.optimizer(training.parameters)

    return _Exchange(MPI.COMM_WORLD.rank, tie)


def _horovod() -> _Exchange:
    import horovod.torch as hvd

    return _of_horovod(hvd)


def _hvd_ext(**named: Any) -> _Exchange:
    import hvd_ext.torch as hvd

    return _of_horovod(hvd, **named)


def _hvd_ext_audited(every: int) -> _Exchange:
    """With an audit of each so many steps, in a folder of this rank that goes with the process."""
    folder = tempfile.TemporaryDirectory()
    os.environ["HVD_EXT_AUDIT"] = str(Path(folder.name) / "audit")
    if every > 1:
        os.environ["HVD_EXT_AUDIT_EVERY"] = str(every)
    exchange = _hvd_ext()
    exchange.folder = folder
    return exchange


def _hvd_ext_passes(*, reproducible: bool) -> _Exchange:
    """Two backward passes of each rank in a step: accumulated, or as slots of a tree."""
    import hvd_ext.torch as hvd

    passes = 2
    slots_per_rank = passes if reproducible else 0
    exchange = _of_horovod(hvd, slots_per_rank, backward_passes_per_step=passes)
    exchange.passes, exchange.adds_passes = passes, not reproducible
    return exchange


def _of_horovod(hvd: Any, slots_per_rank: int = 0, **named: Any) -> _Exchange:
    before = usage.threads()
    hvd.init()
    # The background thread is the first: it starts MPI, which starts the others.
    background = min(usage.threads() - before)

    def tie(training: Training) -> tuple[Any, Any]:
        network = training.network
        if slots_per_rank:
            named["reproducible"] = slots_per_rank * hvd.size()
        optimizer = hvd.DistributedOptimizer(
            training.optimizer(training.parameters),
            named_parameters=network.named_parameters(),
            **named,
        )
        hvd.broadcast_parameters(network.state_dict(), root_rank=0)
        return network, optimizer

    return _Exchange(hvd.rank(), tie, {background: "Horovod background"})


_EXCHANGES: dict[str, Callable[[], _Exchange]] = {
    "none": _none,
    "barrier": _barrier,
    "horovod": _horovod,
    "ddp": _ddp,
    "ddp_zero": partial(_ddp, zero=True),
    "ddp_fp16": partial(_ddp, halves=True),
    "ddp_backend": partial(_ddp, backend="hvd_ext"),
    "ddp_hvd_ext": partial(_ddp, attached="none"),
    "ddp_hvd_ext_bf16": partial(_ddp, attached="bf16"),
    "fsdp": _fsdp,
    "fsdp_hvd_ext": partial(_fsdp, used=True),
    "hvd_ext": _hvd_ext,
    "hvd_ext_sharded": partial(_hvd_ext, sharded=True),
    "hvd_ext_audit": partial(_hvd_ext_audited, 1),
    "hvd_ext_audit_10": partial(_hvd_ext_audited, 10),
    "hvd_ext_two_passes": partial(_hvd_ext_passes, reproducible=False),
    "hvd_ext_reproducible": partial(_hvd_ext_passes, reproducible=True),
}
