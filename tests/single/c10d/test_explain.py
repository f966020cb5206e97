"""What an exchange says of itself where there is nobody to exchange with."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hvd_ext.c10d
from hvd_ext.c10d import without_mpi


def test_one_rank_exchanges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(without_mpi, "mpi_world", lambda size: None)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(torch.nn.Linear(4, 1))
        exchange = hvd_ext.c10d.attach(model)
        model(torch.ones(2, 4)).sum().backward()
        assert exchange.explain().splitlines()[1:] == ["1 rank: nothing is exchanged"]
    finally:
        dist.destroy_process_group()
