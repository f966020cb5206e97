"""Buckets that follow from when gradients are ready: weights are as with Horovod's own.

Layers are registered in an order unlike backward's, ranks are ready at different times,
and one parameter gets no gradient on one rank.
"""

from __future__ import annotations

import time

import horovod.torch as horovod
import pytest
import torch

import hvd_ext.torch

STEPS = 8


class Crosswise(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(64, 1)
        self.first = torch.nn.Linear(32, 64)
        self.middle = torch.nn.Linear(64, 64)
        self.frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        self.seldom = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor, with_seldom: bool) -> torch.Tensor:
        y = self.last(torch.relu(self.middle(torch.relu(self.first(x)))))
        return y * self.seldom if with_seldom else y


def train(module, passes: int, set_to_none: bool):
    torch.manual_seed(7)
    model = Crosswise()
    optimizer = module.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        model.named_parameters(),
        backward_passes_per_step=passes,
    )
    torch.manual_seed(horovod.rank())
    for step in range(STEPS):
        model.zero_grad(set_to_none)  # Horovod's optimizer takes no such argument
        for _ in range(passes):
            loss = model(torch.randn(8, 32), horovod.rank() > 0 or step % 2 == 0).square().mean()
            time.sleep(0.002 * horovod.rank())
            loss.backward()
        optimizer.step()
    return model, optimizer


def check(passes: int, set_to_none: bool) -> tuple[str, list[str]]:
    """Train; return what explain() says, and the parameters in their buckets' order."""
    ours, optimizer = train(hvd_ext.torch, passes, set_to_none)
    theirs, _ = train(horovod, passes, set_to_none)
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-7), name
        if horovod.size() <= 2:
            assert torch.equal(a, b), name
    buckets = [b.layout for b in optimizer._reducer._buckets] if horovod.size() > 1 else []
    plans = hvd_ext.torch.allgather_object([str(bucket) for bucket in buckets])
    assert all(plan == plans[0] for plan in plans)
    order = [span.parameter for bucket in buckets for span in bucket.spans]
    return optimizer.explain(), [optimizer._reducer._slots[i].name for i in order]


@pytest.mark.ranks(3, *(pytest.param(size, marks=pytest.mark.long) for size in (1, 2)))
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("passes", [1, 2])
def test_buckets_follow_from_when_gradients_are_ready(hvd, passes, set_to_none):
    text, names = check(passes, set_to_none)
    if hvd.size() == 1:
        assert "one rank" in text
        return
    assert "after the last" in text, text
    # Backward reaches the last layer first, wherever it is registered.
    assert names.index("last.weight") < names.index("middle.weight"), names
    assert names.index("middle.weight") < names.index("first.weight"), names


@pytest.mark.ranks(2)
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("passes", [1, 2])
def test_the_users_bucket_bytes_are_kept(hvd, monkeypatch, passes, set_to_none):
    monkeypatch.setenv("HVD_EXT_BUCKET_BYTES", "1 MiB")
    text, _ = check(passes, set_to_none)
    assert "HVD_EXT_BUCKET_BYTES" in text, text
