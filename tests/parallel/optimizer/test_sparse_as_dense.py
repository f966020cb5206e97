"""Sparse gradients that are made dense: the bits of a model whose gradients are dense anyway."""

from __future__ import annotations

import pytest
import torch

import hvd_ext.torch as hvd

FOUR = pytest.param(4, marks=pytest.mark.long)
pytestmark = [pytest.mark.ranks(2, FOUR), pytest.mark.usefixtures("hvd")]
ROWS, STEPS = 40, 7


def trained(sparse, *, passes=1, set_to_none=True, without=None, **options):
    """The parameters after some steps; rank `without` has no gradient but in the last one."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(
        torch.nn.Embedding(ROWS, 8, sparse=sparse), torch.nn.Flatten(), torch.nn.Linear(24, 3)
    )
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.1),  # refuses sparse gradients
        sparse_as_dense=sparse,
        backward_passes_per_step=1 if "reproducible" in options else passes,
        **options,
    )
    torch.manual_seed(100 + hvd.rank())
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=set_to_none)
        for _ in range(passes):
            rows = torch.randint(0, ROWS, (5, 3))
            if hvd.rank() != without or step == STEPS - 1:
                model(rows).pow(2).mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def looked_up(sparse_as_dense, *, set_to_none=True, seldom=None):
    """The parameters after SparseAdam's steps; rank `seldom` takes part in every other one."""
    torch.manual_seed(6)
    model = torch.nn.Embedding(ROWS, 8, sparse=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SparseAdam(list(model.parameters()), lr=0.1), sparse_as_dense=sparse_as_dense
    )
    torch.manual_seed(100 + hvd.rank())
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=set_to_none)
        rows = torch.randint(0, ROWS, (5, 3))
        if hvd.rank() != seldom or step % 2:
            model(rows).pow(2).mean().backward()
        optimizer.step()
    return model.weight.detach().clone()


def check(**options):
    for ours, dense in zip(trained(True, **options), trained(False, **options), strict=True):
        assert torch.equal(ours, dense)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"set_to_none": False},
        {"without": 1},
        {"sharded": True},
        {"sharded": True, "without": 1},
    ],
    ids=str,
)
def test_as_with_dense_gradients(options):
    check(**options)


def test_several_passes():
    # What several passes look up is summed in another order.
    for ours, dense in zip(trained(True, passes=3), trained(False, passes=3), strict=True):
        torch.testing.assert_close(ours, dense)


@pytest.mark.parametrize("sharded", [False, True])
def test_in_tree_order(comm, sharded):
    check(reproducible=8, passes=8 // comm.size, sharded=sharded)


@pytest.mark.parametrize("sync", ["local_sgd:steps=3", "one_step_late"])
def test_where_nodes_exchange_seldom(nodes, sync):
    nodes(1)
    check(sync=sync)


@pytest.mark.parametrize(
    "options",
    [{}, {"set_to_none": False}, {"seldom": 1}, {"seldom": 1, "set_to_none": False}],
    ids=str,
)
def test_sparse_adam_takes_them_as_sparse_ones(options):
    # A dense step of Adam would move the rows that nobody looked up, too.
    torch.testing.assert_close(looked_up(True, **options), looked_up(False, **options))
