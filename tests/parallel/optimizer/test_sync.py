"""Nodes that exchange weights once in some steps, or gradients one step late."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

import hvd_ext.torch
from hvd_ext.errors import MismatchError, UsageError
from tests.ranks.asserts import assert_same_bits, parallel_assert
from tests.support.optimizer.learning import Net, batch, flat


def build(sync, seed=3, kind=torch.optim.SGD, dtype=torch.float32, **options):
    torch.manual_seed(seed)
    model = Net().to(dtype)
    inner = kind(model.parameters(), **(options or {"lr": 0.05, "momentum": 0.9}))
    return model, hvd_ext.torch.DistributedOptimizer(inner, sync=sync)


def train(model, optimizer, steps, first=0, rank=None):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(model, step, hvd_ext.torch.rank() if rank is None else rank).backward()
        optimizer.step()


def loss_of(model, step, rank):
    x, target = batch(step, rank)
    dtype = next(model.parameters()).dtype
    return torch.nn.functional.mse_loss(model(x.to(dtype)), target.to(dtype))


def buffers(model):
    return torch.cat([b.detach().double().flatten() for b in model.buffers()]).numpy()


class Alone:
    """What each node does by itself, in one process: the mean of its ranks' gradients."""

    def __init__(self, ranks, seed=3, **options):
        torch.manual_seed(seed)
        self.ranks, self.model = ranks, Net()
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), **({"lr": 0.05, "momentum": 0.9} | options)
        )

    def step(self, step):
        total = None
        for rank in self.ranks:
            self.optimizer.zero_grad()
            loss_of(self.model, step, rank).backward()
            grads = [p.grad.clone() for p in self.model.parameters()]
            total = grads if total is None else [a + b for a, b in zip(total, grads, strict=True)]
        for p, grad in zip(self.model.parameters(), total, strict=True):
            p.grad = grad / len(self.ranks)
        self.optimizer.step()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("ranks_per_node", [1, 2])
@pytest.mark.parametrize("sync", ["local_sgd:steps=3", "diloco:steps=3"])
def test_nodes_train_by_themselves_and_then_exchange(comm, hvd, nodes, ranks_per_node, sync):
    nodes(ranks_per_node)
    model, optimizer = build(sync)
    ours = range(comm.rank // ranks_per_node * ranks_per_node, comm.size)[:ranks_per_node]
    everyone = [
        Alone(range(first, first + ranks_per_node)) for first in range(0, comm.size, ranks_per_node)
    ]
    mine = everyone[ours[0] // ranks_per_node]
    begin, momentum = flat(mine.model), 0.0
    for round_ in range(2):
        train(model, optimizer, 2, 3 * round_)
        for alone in everyone:
            for step in range(3 * round_, 3 * round_ + 2):
                alone.step(step)
        np.testing.assert_allclose(flat(model), flat(mine.model), atol=1e-5)
        parallel_assert(
            comm, (flat(model) != comm.bcast(flat(model))).any() or comm.rank < len(ours)
        )
        train(model, optimizer, 1, 3 * round_ + 2)
        for alone in everyone:
            alone.step(3 * round_ + 2)
        moved = begin - np.mean([flat(alone.model) for alone in everyone], axis=0)
        if sync.startswith("diloco"):
            momentum = 0.9 * momentum + moved
            moved = 0.7 * (moved + 0.9 * momentum)
        begin = begin - moved
        np.testing.assert_allclose(flat(model), begin, atol=1e-5)
        assert_same_bits(comm, flat(model))
        assert_same_bits(comm, buffers(model))
        for alone in everyone:
            vector = torch.from_numpy(begin).float().clone()
            torch.nn.utils.vector_to_parameters(vector, alone.model.parameters())
    assert "nodes exchange weights after 3 steps" in optimizer.explain()


@pytest.mark.ranks(4)
def test_what_batch_norms_have_seen_is_averaged_over_all_ranks(comm, hvd, nodes):
    nodes(1)
    model, optimizer = build("local_sgd:steps=2")
    train(model, optimizer, 1)
    before = comm.allgather(model.norm.running_mean.clone())
    parallel_assert(comm, not torch.equal(before[0], before[1]))
    optimizer.drain()
    torch.testing.assert_close(model.norm.running_mean, torch.stack(before).mean(0))
    assert_same_bits(comm, buffers(model))


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("sync", "compression"),
    [("local_sgd:steps=3", "none"), ("diloco:steps=3", "int8"), ("one_step_late", "int8")],
)
def test_a_drained_run_resumes_to_the_bit(comm, hvd, nodes, sync, compression, monkeypatch):
    monkeypatch.setenv("HVD_EXT_BUCKET_BYTES", "2 KiB")
    monkeypatch.setenv("HVD_EXT_COMPRESSION", compression)
    nodes(2)
    options = {"kind": torch.optim.Adam, "lr": 0.01}
    model, optimizer = build(sync, **options)
    train(model, optimizer, 10)
    optimizer.drain()
    assert_same_bits(comm, flat(model))
    state, weights = copy.deepcopy((optimizer.state_dict(), model.state_dict()))
    resumed, second = build(sync, seed=9, **options)
    # Rank 0 has read the checkpoint, and gives it to the others.
    resumed.load_state_dict(weights)
    if comm.rank == 0:
        second.load_state_dict(state)
    hvd.broadcast_optimizer_state(second, root_rank=0)
    hvd.broadcast_parameters(resumed.state_dict(), root_rank=0)
    for a, b in ((model, optimizer), (resumed, second)):
        train(a, b, 8, 10)
        b.drain()
    parallel_assert(comm, (flat(model) == flat(resumed)).all())
    if sync != "one_step_late":  # as in every step, each rank has seen its own samples
        parallel_assert(comm, (buffers(model) == buffers(resumed)).all())


@pytest.mark.ranks(4)
def test_differing_weights_are_not_evaluated_saved_or_broadcast(comm, hvd, nodes):
    nodes(1)
    model, optimizer = build("local_sgd:steps=3")
    train(model, optimizer, 1)
    with pytest.raises(UsageError, match=r"saving a model whose weights differ between nodes"):
        model.state_dict()
    with pytest.raises(UsageError, match=r"state_dict.. while nodes have different weights"):
        optimizer.state_dict()
    with pytest.raises(UsageError, match=r"broadcast_optimizer_state.. while nodes have different"):
        hvd.broadcast_optimizer_state(optimizer, 0)
    with pytest.raises(UsageError, match=r"broadcast_parameters.. of weights that differ"):
        hvd.broadcast_parameters(dict(model.named_parameters()), 0)
    model.eval()
    with (
        pytest.raises(UsageError, match=r"evaluating a model .*call optimizer.drain"),
        torch.no_grad(),
    ):
        loss_of(model, 0, 0)
    # A frozen norm is no evaluation.
    model.train()
    model.norm.eval()
    with torch.no_grad():
        loss_of(model, 0, 0)
    optimizer.drain()
    model.eval()
    with torch.inference_mode():
        loss_of(model, 0, 0)
    assert_same_bits(comm, flat(pickle.loads(pickle.dumps(model))))
    optimizer.state_dict()
    hvd.broadcast_parameters(model.state_dict(), 0)


@pytest.mark.ranks(4)
def test_bfloat16_weights_are_the_same_after_a_round(comm, hvd, nodes):
    nodes(1)
    model, optimizer = build("diloco:steps=2", dtype=torch.bfloat16)
    train(model, optimizer, 4)
    assert_same_bits(comm, torch.cat([p.detach().flatten() for p in model.parameters()]).float())


@pytest.mark.ranks(4)
@pytest.mark.parametrize("ranks_per_node", [1, 2])
def test_gradients_are_used_one_step_late_and_each_once(comm, hvd, nodes, ranks_per_node):
    nodes(ranks_per_node)
    model, optimizer = build("one_step_late", lr=0.05)
    torch.manual_seed(3)
    twin = Net()
    plain = torch.optim.SGD(twin.parameters(), lr=0.05)
    late = None
    for step in range(6):
        train(model, optimizer, 1, step)
        assert_same_bits(comm, flat(model))
        total = None
        for rank in range(comm.size):
            plain.zero_grad()
            loss_of(twin, step, rank).backward()
            grads = [p.grad / comm.size for p in twin.parameters()]
            total = grads if total is None else [a + b for a, b in zip(total, grads, strict=True)]
        use, late = late, total
        for p, grad in zip(twin.parameters(), use or [None] * len(total), strict=True):
            p.grad = grad
        plain.step()
        np.testing.assert_allclose(flat(model), flat(twin), atol=1e-5)
    with pytest.raises(UsageError, match=r"state_dict.. while the last step's gradients are under"):
        optimizer.state_dict()
    optimizer.drain()
    for p, grad in zip(twin.parameters(), late, strict=True):
        p.grad = grad
    plain.step()
    np.testing.assert_allclose(flat(model), flat(twin), atol=1e-5)
    optimizer.state_dict()
    train(model, optimizer, 2, 6)
    optimizer.load_state_dict(build("every_step", lr=0.05)[1].state_dict())
    optimizer.drain()
    assert_same_bits(comm, flat(model))


@pytest.mark.ranks(4)
@pytest.mark.parametrize("sync", ["local_sgd:steps=3", "diloco:steps=3", "one_step_late"])
def test_on_one_node_every_step_is_exchanged(comm, hvd, sync):
    model, optimizer = build(sync)
    expected, plain = build("every_step")
    train(model, optimizer, 7)
    train(expected, plain, 7)
    parallel_assert(comm, (flat(model) == flat(expected)).all())
    assert "sync: every_step: one node" in optimizer.explain()


@pytest.mark.ranks(4)
def test_the_variable_counts_where_the_script_does_not_say(comm, hvd, nodes, monkeypatch):
    monkeypatch.setenv("HVD_EXT_SYNC", "local_sgd:steps=5")
    nodes(1)
    assert "after 5 steps" in build(None)[1].explain()
    assert "after 7 steps" in build(hvd.LocalSGD(7))[1].explain()


@pytest.mark.ranks(4)
def test_what_does_not_go_together_is_refused(comm, hvd, nodes):
    nodes(1)
    model = Net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    for options, said in [
        ({"sharded": True}, r"with sharded=True .*: leave one of them out"),
        ({"op": hvd.Sum}, "with an op other than Average"),
        ({"op": hvd.Adasum}, "with an op other than Average"),
    ]:
        with pytest.raises(UsageError, match=said):
            hvd.DistributedOptimizer(inner, sync="diloco:steps=4", **options)
    with pytest.raises(
        MismatchError, match=r"rank 1 .* has sync 'local_sgd:steps=3', where rank 0"
    ):
        build(hvd.LocalSGD(2 + comm.rank))
    table = torch.nn.Embedding(10, 3, sparse=True)
    sparse = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=0.1), sync="local_sgd:steps=2"
    )
    sparse.zero_grad()
    with pytest.raises(UsageError, match=r"is sparse: give DistributedOptimizer sparse_as_dense"):
        table(torch.arange(3)).sum().backward()
    with pytest.raises(UsageError, match=r"add_param_group.. of an optimizer with sync="):
        build("local_sgd:steps=2")[1].add_param_group(
            {"params": [torch.nn.Parameter(torch.ones(2))]}
        )
