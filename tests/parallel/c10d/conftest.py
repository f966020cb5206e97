"""Process groups for the tests of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

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


@pytest.fixture(params=["node", "messages"])
def new_group(
    request: pytest.FixtureRequest, comm: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Any]]:
    """Makes process groups of all ranks: of one node, or of nodes of up to two ranks."""
    import torch
    import torch.distributed as dist

    from hvd_ext.c10d.backend import registration
    from hvd_ext.engine.one_node import OneNode
    from hvd_ext.engine.several_nodes import SeveralNodes
    from tests.ranks.asserts import parallel_assert
    from tests.support.arena.pretended_nodes import pretend

    if request.param == "messages":
        pretended = pretend(comm, 1 if comm.size == 2 else 2)
        monkeypatch.setattr(registration, "topology_among", lambda *_: pretended)
        if comm.size == 1:
            monkeypatch.setattr(type(pretended), "one_node", False)
    kind = OneNode if request.param == "node" else SeveralNodes
    made = []

    def make() -> Any:
        group = dist.new_group()
        made.append(group)
        carrier = group._get_backend(torch.device("cpu"))._carrier.carrier
        parallel_assert(comm, isinstance(carrier, kind), carrier)
        return group

    yield make
    for group in made:
        dist.destroy_process_group(group)
