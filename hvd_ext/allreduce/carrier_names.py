"""Names of the carriers of gradients on GPUs, in tables and in recordings. Pure."""

from __future__ import annotations

from collections.abc import Mapping

# In a node a kernel over CUDA IPC; between nodes pinned memory of the host, or messages whose
# buffers are device memory, if this MPI takes them; NCCL may serve both.
IPC, NCCL, STAGED, MPI = "ipc", "nccl", "staged", "mpi"

# By the name in tables, the name in recordings; the first one is used if nothing was measured.
_ON_ONE_NODE = {IPC: "cuda_ipc", NCCL: "nccl"}
_BETWEEN_NODES = {
    STAGED: "cuda_ipc and pinned memory",
    NCCL: "cuda_ipc and nccl",
    MPI: "cuda_ipc and mpi",
}
CARRIERS = tuple(dict.fromkeys((*_ON_ONE_NODE, *_BETWEEN_NODES)))


def carriers_of(nodes: int) -> Mapping[str, str]:
    """Return the names that a job on so many nodes may use; for each, its name in recordings."""
    return _BETWEEN_NODES if nodes > 1 else _ON_ONE_NODE


def usual_carrier(nodes: int) -> str:
    """Return the carrier of gradients on GPUs if nothing was measured."""
    return next(iter(carriers_of(nodes)))
