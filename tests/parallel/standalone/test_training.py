"""Training without Horovod: the optimizer, its state, and SyncBatchNorm."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.support.launch.launching import WITHOUT_HOROVOD

pytestmark = pytest.mark.ranks(pytest.param(2, marks=pytest.mark.long), 3, env=WITHOUT_HOROVOD)


def model_of(seed: int = 0) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def batch(rank: int) -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(rank))


@pytest.mark.parametrize("sharded", [False, True])
def test_the_optimizer_trains_as_one_process_on_all_batches(hvd, sharded):
    size, rank = hvd.size(), hvd.rank()
    model = model_of(rank)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), sharded=sharded)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    whole = model_of()
    plain = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        optimizer.zero_grad()
        model(batch(rank)).square().mean().backward()
        optimizer.step()
        plain.zero_grad()
        sum(whole(batch(r)).square().mean() for r in range(size)).div(size).backward()
        plain.step()
    for mine, other in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(mine, other)
    assert "buckets" in optimizer.explain() or "bucket" in optimizer.explain()


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("with_state", ["every rank", "root", "no rank"])
def test_the_roots_optimizer_state_and_options_reach_every_rank(hvd, wrapped, with_state):
    rank = hvd.rank()
    model = model_of()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (1 + rank), weight_decay=0.0)
    if with_state == "every rank" or (with_state == "root" and rank == 0):
        for _ in range(3):
            model(torch.ones(2, 6) + rank).sum().backward()
            optimizer.step()
        model.load_state_dict(before)
    expected = hvd.broadcast_object(copy.deepcopy(optimizer.state_dict()), 0)
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    state = optimizer.state_dict()
    assert state["param_groups"] == expected["param_groups"]
    assert state["param_groups"][0]["lr"] == 0.1
    if with_state == "no rank":  # as Horovod's: a step with zero gradients made it
        assert {int(entry["step"]) for entry in state["state"].values()} == {1}
        return
    for index, entry in expected["state"].items():
        for name, value in entry.items():
            assert torch.equal(state["state"][index][name], value), name
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)


@pytest.mark.parametrize("shape", [(3,), (3, 5), (3, 4, 5)], ids=str)
def test_sync_batch_norm_is_batch_norm_of_all_ranks_samples(hvd, shape):
    size, rank = hvd.size(), hvd.rank()
    draw = torch.Generator().manual_seed(5)
    # Ranks have different numbers of samples, far from zero.
    samples = [torch.randn(2 + r, *shape, generator=draw).double() + 100 for r in range(size)]
    for options in ({}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}):
        sync = hvd.SyncBatchNorm(3, **options).double()
        kinds = (torch.nn.BatchNorm1d, torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)
        whole = kinds[len(shape) - 1](3, **options).double()
        for _ in range(2):
            mine = samples[rank].clone().requires_grad_()
            output = sync(mine)
            everything = torch.cat(samples).requires_grad_()
            reference = whole(everything)
            begin = sum(len(s) for s in samples[:rank])
            part = slice(begin, begin + len(mine))
            torch.testing.assert_close(output, reference[part])
            output.square().mul(output).sum().backward()
            reference.square().mul(reference).sum().backward()
            torch.testing.assert_close(mine.grad, everything.grad[part])
        for name, value in whole.state_dict().items():
            if name.startswith(("running", "num")):
                torch.testing.assert_close(sync.state_dict()[name], value)
        sync.eval()
        whole.eval()
        torch.testing.assert_close(sync(samples[rank]), whole(torch.cat(samples))[part])
    with pytest.raises(ValueError, match="1 dimension"):
        sync(torch.ones(3))
    assert hvd.SyncBatchNorm(3)(torch.randn(4, *shape).bfloat16()).dtype == torch.bfloat16


def test_sparse_gradients_are_exchanged(hvd):
    size, rank = hvd.size(), hvd.rank()
    embedding = torch.nn.Embedding(10, 3, sparse=True)
    torch.nn.init.zeros_(embedding.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(embedding.parameters(), lr=1.0))
    embedding(torch.tensor([rank, 9])).sum().backward()
    optimizer.step()
    expected = torch.zeros(10, 3)
    expected[:size], expected[9] = -1.0 / size, -1.0
    torch.testing.assert_close(embedding.weight.detach(), expected)


def test_ranks_with_fewer_batches_join(hvd):
    size, rank = hvd.size(), hvd.rank()
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for last in range(size):
        for _ in range(4 if rank == last else 2):
            optimizer.zero_grad()
            model(batch(rank)).sum().backward()
            optimizer.step()
        assert hvd.join() == last
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)


def test_a_planned_allreduce(hvd):
    tensor = torch.full((7,), 1.0 + hvd.rank())
    plan = hvd.plan_allreduce(tensor, hvd.Sum)
    plan()
    assert tensor.tolist() == [sum(range(1, hvd.size() + 1))] * 7
