"""`--exchange ddp`: the part of Horovod that trainers call, for DDP on Gloo.

DDP exchanges gradients in backward, so the optimizer is the trainer's own. The agreements of ranks
before, between and after their steps travel by MPI, as with `training.exchanges.alone`.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import hvd_ext.c10d  # noqa: F401  registers mpi://
from hvd_ext.errors import UsageError
from training.exchanges import alone
from training.exchanges.alone import *  # noqa: F403
from training.exchanges.alone import Average, Sum, size

Compression = SimpleNamespace(none=None, fp16="fp16")


def init() -> None:  # type: ignore[no-redef]
    """Start MPI, and torch.distributed with MPI's ranks. A collective."""
    alone.begin()
    if not dist.is_initialized():
        gpu = torch.cuda.is_available() and dist.is_nccl_available()
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", init_method="mpi://")


class Replica(DistributedDataParallel):
    """A DDP model whose gradients are exchanged in the last of some backward passes."""

    def __init__(self, model: nn.Module, passes: int) -> None:
        """Share rank 0's state. A collective.

        Args:
            model: model on its device.
            passes: backward passes in each step.
        """
        # The trainers themselves average the statistics of batch norms.
        super().__init__(model, broadcast_buffers=False, gradient_as_bucket_view=True)
        self._passes, self._begun = passes, 0

    def forward(self, *inputs: Any) -> Any:
        if not torch.is_grad_enabled():
            return super().forward(*inputs)
        self._begun += 1
        with self.no_sync() if self._begun % self._passes else nullcontext():
            return super().forward(*inputs)


def replicate(model: nn.Module, compression: str | None, passes: int) -> Replica:
    """Wrap the model in DDP. A collective.

    Args:
        model: model on its device, with rank 0's state.
        compression: "fp16" for torch's fp16 hook, "none" or None.
        passes: backward passes in each step.

    Raises:
        UsageError: its ranks share filters.
    """
    require_alike(model)
    replica = Replica(model, passes)
    if compression == "fp16":
        replica.register_comm_hook(None, fp16_compress_hook)
    return replica


def require_alike(model: nn.Module) -> None:
    """Check that every rank has the same parameters.

    Raises:
        UsageError: its ranks share filters.
    """
    if any(getattr(weight, "hvd_ext_own", False) for weight in model.parameters()):
        raise UsageError(
            "--split-filters: DDP reduces every parameter over all ranks: use --exchange hvd_ext"
        )


def DistributedOptimizer(  # type: ignore[no-redef]
    optimizer: torch.optim.Optimizer,
    op: str = Average,
    gradient_predivide_factor: float = 1.0,
    **exchange: Any,
) -> torch.optim.Optimizer:
    """The optimizer itself.

    Raises:
        UsageError: DDP reduces gradients in another way.
    """
    if op != Average:
        raise UsageError("--use-adasum: DDP averages gradients: use --exchange horovod")
    if gradient_predivide_factor != 1.0:
        raise UsageError(
            f"--gradient-predivide-factor {gradient_predivide_factor:g}: DDP divides before the "
            "sum: use --exchange hvd_ext or horovod"
        )
    return optimizer


def allreduce(  # type: ignore[no-redef]
    tensor: Tensor, name: str = "", op: str = Average
) -> Tensor:
    """The ranks' mean or sum. A collective."""
    total = tensor.clone()
    dist.all_reduce(total)
    return total if op == Sum else total / size()
