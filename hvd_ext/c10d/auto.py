"""`install`: programs that ask torch.distributed for Gloo get hvd_ext, whoever calls it for them.

Accelerate, Transformers and Lightning make the process group and wrap the model themselves.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hvd_ext import variables
from hvd_ext.c10d.backend.registration import NAME, register
from hvd_ext.c10d.ddp import attach, check
from hvd_ext.c10d.torch_internals import has_hook
from hvd_ext.errors import UsageError


@functools.cache
def install() -> None:
    """Replace Gloo as the default process group's backend on the CPU, for this process.

    To be called before the process group is made. DDP models then exchange gradients as after
    `attach`, from their first forward pass in training on, unless they have a communication hook,
    are on a GPU or are refused by `attach`; FSDP2 models as after `fsdp.use`.
    `new_group(backend="gloo")` stays Gloo's.

    Raises:
        UsageError: a variable of hvd_ext has no valid value.
    """
    variables.STALL_TIMEOUT_S.read()
    register()
    make_group = dist.init_process_group

    @functools.wraps(make_group)
    def init_process_group(backend: str | None = None, *arguments: Any, **named: Any) -> None:
        make_group(_backend(backend), *arguments, **named)
        if _backend(backend) == NAME and dist.get_rank() == 0:
            print("hvd_ext: active: serves torch.distributed in place of Gloo", file=sys.stderr)

    _replace(make_group, init_process_group)
    from torch.distributed.fsdp import fully_shard

    _replace(fully_shard, _using(fully_shard))
    made: Any = DistributedDataParallel.__init__

    @functools.wraps(made)
    def attached(model: DistributedDataParallel, *arguments: Any, **named: Any) -> None:
        made(model, *arguments, **named)
        _attach_in_training(model)

    DistributedDataParallel.__init__ = attached  # type: ignore[assignment, method-assign]


def _backend(asked: str | None) -> str | None:
    """The backend for a default group, in place of the one that was asked for."""
    on_cpu_alone = asked is None and not torch.accelerator.is_available()
    return NAME if asked == "gloo" or on_cpu_alone else asked


def _replace(old: Any, new: Any) -> None:
    """Have every module that has imported `old` by name, torch's own included, call `new`."""
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is old:
                setattr(module, name, new)


def _using(shard: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(shard)  # its attributes too, by which torch finds a module's state
    def fully_shard(module: Any, *arguments: Any, **named: Any) -> Any:
        sharded = shard(module, *arguments, **named)
        from hvd_ext.c10d.fsdp import use

        for one in module if isinstance(module, (list, tuple)) else (module,):
            use(one)
        return sharded

    return fully_shard


def _attach_in_training(model: DistributedDataParallel) -> None:
    """Attach at the first forward pass in training: until then it may get another hook."""

    @torch.compiler.disable
    def first(*_: Any) -> None:
        if not (model.training and torch.is_grad_enabled()):
            return  # one rank may evaluate alone
        handle.remove()
        try:
            if check(model).type != "cpu":
                raise UsageError("it is on a GPU; attach(model) has hvd_ext reduce its gradients")
        except UsageError as refused:
            print(f"hvd_ext: a model stays with its process group: {refused}", file=sys.stderr)
            return
        if not has_hook(model):
            attach(model)

    handle = model.register_forward_pre_hook(first)
