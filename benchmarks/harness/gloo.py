"""torch.distributed on Gloo, which several benchmarks compare with, or on another backend."""

from __future__ import annotations

import importlib
import os
import tempfile
from typing import Any


def start(comm: Any, backend: str = "gloo") -> None:
    """Have torch.distributed's ranks be those of an MPI communicator; collective, once."""
    import torch

    if torch.distributed.is_initialized():
        return
    folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if backend == "hvd_ext":
        importlib.import_module("hvd_ext.c10d")  # registers it
    torch.distributed.init_process_group(
        backend, init_method=f"file://{folder}/store", rank=comm.rank, world_size=comm.size
    )
