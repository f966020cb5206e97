"""Process groups for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def gloo() -> Iterator[None]:
    """torch.distributed, started by `mpi://`, with one thread for each rank."""
    import torch
    import torch.distributed as dist

    import hvd_ext.c10d

    assert hvd_ext.c10d
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="mpi://")
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def backend() -> Iterator[None]:
    """torch.distributed on the backend hvd_ext, started by `mpi://`."""
    import torch
    import torch.distributed as dist

    import hvd_ext.c10d

    assert hvd_ext.c10d
    torch.set_num_threads(1)
    dist.init_process_group("hvd_ext", init_method="mpi://")
    yield
    dist.destroy_process_group()
