"""Horovod's interface without Horovod: the names of horovod.torch, over MPI.

hvd_ext.torch.horovods uses them in place of Horovod's. Collectives are negotiated by name, as
Horovod's are (negotiation.py). Requests that only Horovod serves are refused by name (refused.py).
"""

# ruff: noqa: F401 (all of it is exported)

import inspect

from hvd_ext.torch.standalone.collectives import (
    allgather_async,
    alltoall_async,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather_async,
)
from hvd_ext.torch.standalone.compression import Compression
from hvd_ext.torch.standalone.coordinator import HorovodInternalError
from hvd_ext.torch.standalone.differentiable import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from hvd_ext.torch.standalone.handles import barrier, join, poll, synchronize
from hvd_ext.torch.standalone.objects import (
    allgather_object,
    broadcast_object,
    broadcast_parameters,
)
from hvd_ext.torch.standalone.ranks import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
)
from hvd_ext.torch.standalone.reducing import (
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    reducescatter_async,
    sparse_allreduce_async,
)
from hvd_ext.torch.standalone.reductions import Adasum, Average, Max, Min, Product, Sum
from hvd_ext.torch.standalone.refused import (
    DistributedOptimizer,
    ProcessSet,
    add_process_set,
    elastic,
    remove_process_set,
    start_timeline,
    stop_timeline,
)
from hvd_ext.torch.standalone.sync_batch_norm import SyncBatchNorm

__all__ = [
    name
    for name, value in globals().items()
    if not name.startswith("_") and not inspect.ismodule(value)
]
