"""Requests that the arena does not serve, but Horovod's own optimizer does."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any

from hvd_ext import variables
from hvd_ext.arena.cuda.kernels import SERVED as DEVICE_DTYPES
from hvd_ext.dtypes import DTYPES
from hvd_ext.errors import HvdExtError
from hvd_ext.tensors import dtype_name
from hvd_ext.torch import horovods
from hvd_ext.torch.request import Request


def reason_for_horovods(request: Request) -> str | None:
    """Return why the arena does not serve this request, or None if it does."""
    if request.op not in (horovods.Average, horovods.Sum):
        return "the arena reduces by Average and Sum only"
    try:
        _ = request.format
    except LookupError as reason:
        return str(reason.args[0])
    if request.process_set is not horovods.global_process_set:
        return "a process set"
    if os.environ.get("HOROVOD_ELASTIC") == "1":
        return "the job is elastic"
    return reason_against_memory(request.optimizer.param_groups) or reason_against_job()


def reason_against_memory(groups: Sequence[dict[str, Any]]) -> str | None:
    """Return why the arena cannot hold these groups' gradients, or None if it can."""
    parameters = [p for group in groups for p in group["params"]]
    devices = sorted({str(p.device) for p in parameters})
    if len(devices) > 1:
        return f"parameters are on {' and '.join(devices)}"
    served: Collection[str] = DTYPES
    if devices and devices != ["cpu"]:
        if not devices[0].startswith("cuda"):
            return f"parameters are on {devices[0]}"
        if not variables.DEVICE_ARENA.read():
            return f"parameters are on {devices[0]}, and HVD_EXT_DEVICE_ARENA=0"
        served = DEVICE_DTYPES
    for p in parameters:
        if dtype_name(p.dtype) not in served:
            return f"parameters are {p.dtype}, not one of {', '.join(served)}"
    return None


def reason_against_job() -> str | None:
    """Return why hvd_ext cannot communicate in this job, or None if it can."""
    if horovods.size() == 1:
        return None
    if not horovods.mpi_enabled():
        return "Horovod runs on Gloo, not MPI"
    from mpi4py import MPI

    if not MPI.Is_initialized():
        return "MPI is not running"
    if MPI.Is_finalized():
        raise HvdExtError("MPI has ended, as another rank has: look for its last lines above")
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return "MPI runs without MPI_THREAD_MULTIPLE (HOROVOD_MPI_THREADS_DISABLE?)"
    if MPI.COMM_WORLD.size != horovods.size():
        return "Horovod was started on some of MPI's ranks only"
    return None
