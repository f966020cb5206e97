"""Names of the carriers of gradients on GPUs, in tables and in recordings. Pure."""

from __future__ import annotations

from collections.abc import Mapping

# In a node a kernel over CUDA IPC; between nodes pinned memory of the host, or messages whose
# buffers are device memory, if this MPI takes them; NCCL may serve both.
IPC, NCCL, STAGED, MPI = "ipc", "nccl", "staged", "mpi"
# Ends the name of a carrier that, over CUDA IPC, reads from and writes to one peer at a time.
PAIRWISE = "_pairwise"


def _in_both_orders(recorded: Mapping[str, str]) -> dict[str, str]:
    pairwise = {
        name + PAIRWISE: text.replace("cuda_ipc", f"cuda_ipc{PAIRWISE}")
        for name, text in recorded.items()
    }
    return {**recorded, **pairwise}


# By the name in tables, the name in recordings; the first one is used if nothing was measured.
_ON_ONE_NODE = {**_in_both_orders({IPC: "cuda_ipc"}), NCCL: "nccl"}
_BETWEEN_NODES = _in_both_orders(
    {
        STAGED: "cuda_ipc and pinned memory",
        NCCL: "cuda_ipc and nccl",
        MPI: "cuda_ipc and mpi",
    }
)
CARRIERS = tuple(dict.fromkeys((*_ON_ONE_NODE, *_BETWEEN_NODES)))


def carriers_of(nodes: int) -> Mapping[str, str]:
    """Return the names that a job on so many nodes may use; for each, its name in recordings."""
    return _BETWEEN_NODES if nodes > 1 else _ON_ONE_NODE


def usual_carrier(nodes: int) -> str:
    """Return the carrier of gradients on GPUs if nothing was measured."""
    return next(iter(carriers_of(nodes)))


def is_pairwise(name: str) -> bool:
    """Whether a carrier exchanges with one peer of the node at a time."""
    return name.endswith(PAIRWISE)


def in_any_order(name: str) -> str:
    """Return IPC, NCCL, STAGED or MPI, whatever a carrier's order of peers is."""
    return name.removesuffix(PAIRWISE)
