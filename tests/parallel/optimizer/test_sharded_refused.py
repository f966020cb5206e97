"""What a sharded optimizer does not serve: refused by name, on every rank."""

from __future__ import annotations

import functools
import re
import time

import pytest
import torch

from hvd_ext.errors import UsageError
from hvd_ext.torch.job import lifecycle
from tests.support.optimizer.sharding import build, take_step, train, wrap


class ByNorm(torch.optim.SGD):
    """A step as long as the parameter, as in LARS."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-group["lr"] * (p.norm() / p.grad.norm()).item())


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (torch.optim.LBFGS, {}, "LBFGS cannot update a part"),
        (torch.optim.Adafactor, {}, "Adafactor "),
        (ByNorm, {"lr": 0.1}, "ByNorm updates an element by more than"),
    ],
)
def test_an_optimizer_that_needs_whole_parameters_is_refused_by_name(
    comm, hvd, kind, options, words
):
    with pytest.raises(UsageError, match=words):
        hvd.DistributedOptimizer(kind(build().parameters(), **options), sharded=True)


@pytest.mark.ranks(2)
def test_what_the_arena_does_not_serve_is_refused(comm, hvd):
    class OfTheScript(hvd.Compression.fp16):
        """As Horovod's, but hvd_ext cannot know that."""

    inner = torch.optim.SGD(build().parameters(), lr=0.1)
    with pytest.raises(UsageError, match="gradient compression by OfTheScript"):
        hvd.DistributedOptimizer(inner, compression=OfTheScript, sharded=True)
    table = torch.nn.Embedding(10, 3, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0.1), sharded=True)
    with pytest.raises(UsageError, match=r"'allreduce\.noname\.0\.0' is sparse: "):
        table(torch.tensor([1, 2])).sum().backward()
    assert optimizer is not None


@pytest.mark.ranks(2)
def test_join_is_refused_on_every_rank(comm, hvd):
    _, optimizer = train(True, 1)
    with pytest.raises(UsageError, match=r"join\(\) with a sharded optimizer"):
        hvd.join()
    assert optimizer is not None


@pytest.mark.ranks(2, pytest.param(3, marks=pytest.mark.long))
def test_join_is_refused_where_others_take_a_step(comm, hvd, monkeypatch):
    """The rank that would join, and those that wait for it, get the same line."""
    # Ranks go on from here with different numbers of steps.
    monkeypatch.setattr(lifecycle._job, "begun", None)
    model, optimizer = train(True, 1)
    others = functools.partial(take_step, model, optimizer)
    with pytest.raises(UsageError) as refused:
        (hvd.join if comm.rank == 1 else others)()
    lines = comm.allgather(str(refused.value))
    assert lines[1].startswith("hvd.join() with a sharded optimizer: a rank that has joined ")
    assert all(line.endswith(lines[1]) for line in lines)
    assert re.match(r"rank 1 \(.*\) called hvd\.join\(\) with", lines[0])


@pytest.mark.ranks(2)
def test_join_that_every_rank_is_refused_hinders_no_step(comm, hvd):
    model, optimizer = train(True, 1)
    for _ in range(6):
        with pytest.raises(UsageError, match=r"join\(\) with a sharded optimizer"):
            hvd.join()
        if comm.rank == 1:
            time.sleep(0.6)  # longer than a rank waits before it looks
        take_step(model, optimizer)


@pytest.mark.ranks(2)
def test_join_is_served_once_all_ranks_have_dropped_their_sharded_optimizers(comm, hvd):
    _, optimizer = train(True, 1)
    kept = optimizer if comm.rank == 1 else None
    del optimizer
    for served in (False, True):
        # Ranks find out together when the next one is made.
        model, plain = train(False, 1)
        if served:
            for _ in range(comm.rank):
                take_step(model, plain)
            assert hvd.join() == 1
        else:
            with pytest.raises(UsageError, match=r"join\(\) with a sharded optimizer"):
                hvd.join()
        kept = None
    assert kept is None


@pytest.mark.ranks(2)
def test_a_graph_kept_over_a_step_is_refused_as_ever(comm, hvd):
    model = build()
    optimizer = wrap(model, True)
    loss = model(torch.randn(4, 3, 6, 6)).square().mean()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
