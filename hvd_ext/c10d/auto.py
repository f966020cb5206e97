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
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

from hvd_ext import variables
from hvd_ext.c10d.backend.registration import NAME, register
from hvd_ext.c10d.ddp import attach, check
from hvd_ext.c10d.torch_internals import has_hook
from hvd_ext.errors import StallError, UsageError
from hvd_ext.units import counted

_EVERY_RANK = (
    "a rank that runs without hvd_ext never comes: start each with python -m hvd_ext.c10d, or "
    "call hvd_ext.c10d.install() in it"
)
# The backends of the default groups of this process.
_made: list[str] = []


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
    from torch.distributed.fsdp import fully_shard

    for old, new in (
        (dist.init_process_group, _serving(dist.init_process_group)),
        (fully_shard, _using(fully_shard)),
        (start_processes, _installing(start_processes)),
    ):
        _replace(old, new)
    made: Any = DistributedDataParallel.__init__

    @functools.wraps(made)
    def attached(model: DistributedDataParallel, *arguments: Any, **named: Any) -> None:
        made(model, *arguments, **named)
        _attach_in_training(model)

    DistributedDataParallel.__init__ = attached  # type: ignore[assignment, method-assign]


def has_made_a_group() -> bool:
    """Whether this process has made a default process group since `install`."""
    return bool(_made)


def _serving(make: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(make)
    def init_process_group(backend: str | None = None, *arguments: Any, **named: Any) -> None:
        used = _backend(backend)
        try:
            make(used, *arguments, **named)
        except StallError as error:
            if used == backend:
                raise
            raise StallError(f"{error}; {_EVERY_RANK}", error.ranks) from None
        _made.append(dist.get_backend())
        if used == NAME:
            ranks = counted(dist.get_world_size(), "rank")
            _say(f"serves the process group of {ranks}" + " in place of Gloo" * (used != backend))
        else:
            _say(f"leaves the process group to {_made[-1]}: it serves those of Gloo")

    return init_process_group


def _say(text: str) -> None:
    """Print a line on rank 0, because an unchanged script never calls `explain`."""
    if dist.get_rank() == 0:
        print(f"hvd_ext: {text}", file=sys.stderr, flush=True)


def _backend(asked: str | None) -> str | None:
    """Return the backend of a default group, in place of the one that was requested."""
    on_cpu_alone = asked is None and not torch.accelerator.is_available()
    return NAME if asked == "gloo" or on_cpu_alone else asked


def _replace(old: Any, new: Any) -> None:
    """Make every module that has imported `old` by name, torch's own included, call `new`."""
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is old:
                setattr(module, name, new)


def _using(shard: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(shard)  # and its attributes, by which torch finds a module's state
    def fully_shard(module: Any, *arguments: Any, **named: Any) -> Any:
        sharded = shard(module, *arguments, **named)
        from hvd_ext.c10d.fsdp import use

        for one in module if isinstance(module, (list, tuple)) else (module,):
            use(one)
        _say_shards()
        return sharded

    return fully_shard


@functools.cache
def _say_shards() -> None:
    _say("active: exchanges shards and gradients of FSDP2")


class _Installing:
    """A function that calls `install` first; it can be pickled for another process."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        install()
        return self._function(*arguments)


def _installing(start: Callable[..., Any]) -> Callable[..., Any]:
    """Make `install` also serve the processes that `torch.multiprocessing` starts."""

    @functools.wraps(start)
    def start_processes(fn: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return start(_Installing(fn), *arguments, **named)

    return start_processes


def _attach_in_training(model: DistributedDataParallel) -> None:
    """Attach at the first forward pass in training; until then, the model may get another hook."""

    @torch.compiler.disable
    def first(*_: Any) -> None:
        if not (model.training and torch.is_grad_enabled()):
            return  # one rank may evaluate alone
        handle.remove()
        try:
            if check(model).type != "cpu":
                raise UsageError("it is on a GPU; attach(model) has hvd_ext reduce its gradients")
        except UsageError as refused:
            _say(f"a model stays with its process group: {refused}")
            return
        if has_hook(model):
            _say("a model keeps its own communication hook")
            return
        attach(model)
        count = sum(parameter.requires_grad for parameter in model.parameters())
        _say(f"active: exchanges gradients of {counted(count, 'parameter')}")

    handle = model.register_forward_pre_hook(first)
