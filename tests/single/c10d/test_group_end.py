"""A group that was destroyed leaves nothing of what torch destroys with it."""

from __future__ import annotations

import gc
import socket

import pytest
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

import hvd_ext.c10d
from hvd_ext.c10d import without_mpi
from hvd_ext.c10d.ranks import topology_of


def is_served(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("backend", ["hvd_ext", "gloo"])
@pytest.mark.parametrize("debug", ["OFF", "DETAIL"])
def test_the_store_ends_with_its_group(
    monkeypatch: pytest.MonkeyPatch, backend: str, debug: str
) -> None:
    assert hvd_ext.c10d
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", debug)
    dist.set_debug_level_from_env()  # type: ignore[attr-defined]
    monkeypatch.setattr(without_mpi, "mpi_world", lambda size: None)
    store = TCPStore("127.0.0.1", 0, 1, True)
    port = store.port
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    del store
    topology = topology_of(dist.group.WORLD)
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.sum() == 3
    assert topology.world.size == 1
    assert is_served(port)
    del topology
    dist.destroy_process_group()
    gc.collect()
    assert not is_served(port)
    monkeypatch.undo()
    dist.set_debug_level_from_env()  # type: ignore[attr-defined]
