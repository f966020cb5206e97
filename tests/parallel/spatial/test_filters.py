"""CosmoFlow whose ranks share deep filters, with hvd_ext.torch's DistributedOptimizer."""

from __future__ import annotations

from typing import Any

import horovod.torch as horovod
import pytest
import torch
from torch import nn

import hvd_ext.torch as hvd
from hvd_ext import spatial
from hvd_ext.errors import UsageError
from tests.support.spatial.split_models import adam, build, cases, split, unsplit, worst

DEEP = {"gather_before": ["features.11"], "split_filters": ["features.11", "features.15", "head"]}
SAMPLES = 2


def distributed(optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_parameters(list(model.named_parameters()), root_rank=0)
    return hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


@pytest.mark.usefixtures("hvd")
@pytest.mark.ranks(pytest.param(2, marks=pytest.mark.long), 4)
def test_five_steps_by_adam_equal_the_unsplit_models() -> None:
    """On 2 ranks, and on 2 groups of 2, whose weights differ but for rank 0's."""
    groups = hvd.size() // 2
    model = build(cases("cosmoflow", SAMPLES)[0], dropout=False)
    if hvd.rank() > 0:
        for parameter in model.parameters():
            nn.init.constant_(parameter, float(hvd.rank()))
    losses, state = split(
        None, "cosmoflow", SAMPLES, (2, 1, 1), model, wrap=distributed, learner=adam, **DEEP
    )
    mean = hvd.allreduce(torch.tensor(losses, dtype=torch.float64), name="losses").tolist()
    found = worst((mean, state), unsplit("cosmoflow", SAMPLES, groups, learner=adam))
    assert found < 1e-10


@pytest.mark.usefixtures("hvd")
@pytest.mark.ranks(4)
def test_what_would_mix_ranks_filters_is_refused() -> None:
    grid = spatial.ProcessGrid(channels=2)
    model = spatial.convert(
        nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 3)), grid, split_filters=["0"]
    )

    def made(**options: Any) -> Any:
        return hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters()), model.named_parameters(), **options
        )

    optimizer = made()
    # Nothing is left to exchange: the step is taken all the same.
    x = torch.ones(2, 3)
    everything = spatial.convert(
        nn.Sequential(nn.Linear(3, 2, bias=False)), grid, split_filters=["0"]
    )
    before = everything.state_dict()["0.weight"]
    alone = hvd.DistributedOptimizer(torch.optim.SGD(everything.parameters(), lr=1.0))
    everything(x).sum().backward()
    alone.step()
    assert torch.equal(everything.state_dict()["0.weight"], before - 2)
    refused = [
        lambda: made(op=hvd.Sum),
        lambda: made(op=hvd.Adasum),
        lambda: made(sharded=True),
        lambda: optimizer.clip_grad_norm_(1.0),
        lambda: hvd.broadcast_optimizer_state(optimizer, root_rank=0),
        lambda: horovod.DistributedOptimizer(
            torch.optim.Adam(model.parameters()), model.named_parameters()
        ),
    ]
    for attempt in refused:
        with pytest.raises(UsageError, match="filters"):
            attempt()
