"""DDP's gradients are those of Gloo to the bit at 2 ranks, in every mode of DDP's."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.algorithms.join import Join

from hvd_ext.c10d import attach
from tests.ranks.asserts import parallel_assert
from tests.support.c10d.models import Weighted, flat, gradients_of, train, wrap

pytestmark = pytest.mark.usefixtures("gloo")
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def is_in_place(exchange, model):
    assert "reduced where they lie" in exchange.explain()
    if model.gradient_as_bucket_view:
        # Buckets that DDP has rebuilt, too.
        assert all(p.grad.is_shared() for p in model.parameters())


def check(comm, **case):
    want, got = train(False, **case), train(True, looked_at=is_in_place, **case)
    same = [torch.equal(a, b) for a, b in zip(want, got, strict=True)]
    parallel_assert(comm, all(same), same)
    parallel_assert(comm, len({bytes(g.numpy()) for g in got}) == len(got), "steps are alike")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("view", [False, True], ids=["copied", "view"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_float_dtype(comm, dtype, view):
    check(comm, dtype=dtype, gradient_as_bucket_view=view)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("view", [False, True], ids=["copied", "view"])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param({"accumulated": 3}, id="no_sync"),
        pytest.param({"static_graph": True}, id="static_graph"),
        pytest.param(
            {"find_unused_parameters": True, "skipped": lambda step: step % 7}, id="unused"
        ),
        pytest.param({"bucket_cap_mb": 25}, id="one bucket"),
        # DDP rebuilds it elsewhere, and it looks the same.
        pytest.param({"shapes": ((33, 17),)}, id="one parameter"),
        pytest.param({"bucket_cap_mb": 0.0001}, id="a bucket each"),
    ],
)
def test_every_mode(comm, case, view):
    check(comm, gradient_as_bucket_view=view, **case)


@pytest.mark.ranks(2)
def test_two_models_in_one_backward(comm):
    def both(hooked):
        models = [wrap(Weighted()), wrap(Weighted(torch.float64))]
        kept = [attach(model) for model in models] if hooked else []
        seen = []
        for step in range(6):
            values = [
                gradients_of(comm.rank, step + 50 * i, p.dtype)
                for i, p in enumerate(next(m.parameters()) for m in models)
            ]
            losses = [model(v) for model, v in zip(models, values, strict=True)]
            (losses[0] + losses[1]).backward()
            seen += [flat(model) for model in models]
            for model in models:
                model.zero_grad()
        for exchange in kept:
            assert "reduced where they lie" in exchange.explain()
        return seen

    same = [torch.equal(a, b) for a, b in zip(both(False), both(True), strict=True)]
    parallel_assert(comm, all(same), same)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("more", [0, 1, 3, 7])
@pytest.mark.parametrize("joins_after", [0, 1, 2, 5])
def test_a_rank_that_joins_takes_part_with_zeros(comm, joins_after, more):
    def uneven(hooked):
        model, seen = wrap(Weighted()), []
        kept = attach(model) if hooked else None
        with Join([model]):
            for step in range(joins_after + more * comm.rank):
                model(gradients_of(comm.rank, step)).backward()
                seen.append(flat(model))
                model.zero_grad()
        assert not hooked or kept.explain()
        return seen

    same = [torch.equal(a, b) for a, b in zip(uneven(False), uneven(True), strict=True)]
    parallel_assert(comm, all(same), same)


@pytest.mark.ranks(2)
def test_convolutions_in_channels_last(comm):
    def trained(hooked):
        torch.manual_seed(1)
        inner = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 4, 3))
        model = wrap(inner.to(memory_format=torch.channels_last))
        kept = attach(model) if hooked else None
        seen = []
        for step in range(4):
            x = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(step + comm.rank))
            model(x).square().sum().backward()
            seen.append(flat(model))
            model.zero_grad()
        del kept
        return seen

    same = [torch.equal(a, b) for a, b in zip(trained(False), trained(True), strict=True)]
    parallel_assert(comm, all(same), same)
