"""A model that programs do unusual things to, and what must hold whatever they do."""

from __future__ import annotations

import os

import torch

import hvd_ext.torch as hvd

STEPS = 6
# Set by test_hazards_on_nodes.py, which has the tests of hazards too.
SEVERAL_NODES = "HVD_EXT_TEST_RANKS_PER_NODE" in os.environ


def build(**arguments):
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(36, 2)]
    model = torch.nn.Sequential(*layers)
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, hvd.DistributedOptimizer(inner, model.named_parameters(), **arguments)


def backward(model, seed=0, **arguments):
    generator = torch.Generator().manual_seed(100 * seed + hvd.rank())
    x = torch.randn(2, 3, 5, 5, generator=generator).to(model[0].weight.dtype)
    model(x).square().sum().backward(**arguments)


def assert_alike(model):
    mine = torch.cat([p.detach().reshape(-1).double() for p in model.parameters()])
    assert len(set(hvd.allgather_object(mine.numpy().tobytes()))) == 1
