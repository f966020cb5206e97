"""Give an unmodified Horovod script the optimizer of hvd_ext."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from hvd_ext import schedules, variables
from hvd_ext.compression import formats
from hvd_ext.torch import OVERRIDES, horovods
from hvd_ext.torch.wrapped import DistributedMixin
from hvd_ext.units import counted


def install() -> None:
    """Put hvd_ext's functions into horovod.torch, for this process.

    To be called before the script imports it: `from horovod.torch import
    DistributedOptimizer` binds what exists at that moment.

    Raises:
        UsageError: a variable of hvd_ext has no valid value. Every rank checks this here, before
            MPI starts: later, the first rank to end would end MPI while the others use it.
    """
    variables.STALL_TIMEOUT_S.read()
    variables.BUCKET_BYTES.read()
    variables.DEVICE_ARENA.read()
    variables.SHARDED.read()
    variables.REPRODUCIBLE.read()
    variables.KEEP_MEMORY.read(os.environ)
    formats.parse(variables.COMPRESSION.read())
    schedules.parse(variables.SYNC.read())
    announcing = _announcing(OVERRIDES["DistributedOptimizer"])
    horovods.replace({**OVERRIDES, "DistributedOptimizer": announcing})
    dist.init_process_group = _naming_the_other(dist.init_process_group)


def _naming_the_other(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `make` so that rank 0 says which backend serves the process group that it makes."""

    @functools.wraps(make)
    def made(*arguments: Any, **named: Any) -> Any:
        made = make(*arguments, **named)
        if dist.get_rank() == 0:
            print(
                "hvd_ext: note: python -m hvd_ext serves Horovod; for torch.distributed, DDP and "
                "FSDP2 start the script with python -m hvd_ext.c10d",
                file=sys.stderr,
            )
        return made

    return made


def _announcing(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `make` so that rank 0 says that hvd_ext is active; scripts do not call `explain`."""

    @functools.wraps(make)
    def made(*arguments: Any, **named: Any) -> Any:
        optimizer = make(*arguments, **named)
        if isinstance(optimizer, DistributedMixin) and horovods.rank() == 0:
            count = sum(len(group["params"]) for group in optimizer.param_groups)
            print(
                f"hvd_ext: active: exchanges gradients of {counted(count, 'parameter')}",
                file=sys.stderr,
            )
        return optimizer

    return made
