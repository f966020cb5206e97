"""What programs do to optimizers besides training: served, or refused by name.

Whatever happens, ranks must never go on with different weights.
"""

from __future__ import annotations

import gc
import threading
import time

import pytest
import torch

import hvd_ext.torch as hvd
from hvd_ext import listen
from hvd_ext.errors import UsageError
from tests.support.optimizer.hazards import (
    SEVERAL_NODES,
    STEPS,
    assert_alike,
    backward,
    build,
)

TWO = pytest.param(2, marks=pytest.mark.long)
pytestmark = [
    pytest.mark.ranks(TWO, 3),
    pytest.mark.usefixtures("nodes_by_variable", "hvd"),
]


def test_hooks_run_once_a_step():
    model, optimizer = build()
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    optimizer.load_state_dict(optimizer.state_dict())
    backward(model)
    optimizer.step()
    assert len(calls) == 1


def test_a_group_that_cannot_be_exchanged():
    _, optimizer = build()
    late = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    with pytest.raises(UsageError, match="complex64"):
        optimizer.add_param_group({"params": [late]})


def test_an_unfrozen_parameter_that_nodes_would_not_exchange_is_refused():
    model, _ = build()
    model[0].weight.requires_grad_(False)
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), sync=hvd.LocalSGD(2))
    model[0].weight.requires_grad_(True)
    backward(model)
    if SEVERAL_NODES:
        with pytest.raises(UsageError, match=r"'0\.weight' was frozen when"):
            optimizer.step()
    else:
        optimizer.step()
        assert_alike(model)


@pytest.mark.parametrize("fresh", [True, False])
def test_channels_last_is_broadcast(fresh):
    """Parameters on some ranks only, too; and an optimizer's state."""
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(36, 2)
    )
    if hvd.rank() != 1:
        model.to(memory_format=torch.channels_last)
    strides = model[0].weight.stride()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    assert_alike(model)
    with torch.no_grad():
        model[0].weight += hvd.rank()
    hvd.broadcast_parameters(list(model.parameters()), root_rank=0)
    assert_alike(model)
    assert model[0].weight.stride() == strides
    model.to(memory_format=torch.channels_last)
    inner = torch.optim.Adam(model.parameters(), lr=0.01 * (hvd.rank() + 1))
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    if not fresh:
        backward(model)
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    assert_alike(model)


def test_join_where_collectors_differ():
    """Whether join is served does not depend on what a rank's collector has taken."""
    _, optimizer = build()
    if hvd.rank() == 0:
        del optimizer
        gc.collect()
    if SEVERAL_NODES:
        with pytest.raises(UsageError, match="on one node only, and this job has"):
            hvd.join()
    else:
        hvd.join()


def test_joined_ranks_take_part():
    """Uneven batches: as many steps as there are for one rank, over and over."""
    if SEVERAL_NODES:
        pytest.skip("hvd.join() serves one node only")
    models, optimizers = zip(*[build() for _ in range(2)], strict=True)
    for _ in range(3):
        for step in range(STEPS + hvd.rank()):
            for optimizer in optimizers:
                optimizer.zero_grad()
            # Both are under way at once.
            for model in models:
                backward(model, step)
            for optimizer in reversed(optimizers):
                optimizer.step()
            hvd.allreduce(torch.ones(1), name="a loss")
        last = hvd.join()
        for model in models:
            hvd.broadcast_parameters(model.state_dict(), root_rank=last)
            assert_alike(model)
    assert last == hvd.size() - 1


def test_join_returns_the_rank_that_took_the_most_steps():
    """Steps in the arena are not ordered with Horovod's joins."""
    if SEVERAL_NODES:
        pytest.skip("hvd.join() serves one node only")
    model, optimizer = build()
    for last in [*range(hvd.size())] * 3:
        for step in range(3 if hvd.rank() == last else 1):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
        assert hvd.join() == last
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)


def test_join_within_a_step_is_refused():
    if SEVERAL_NODES:
        pytest.skip("hvd.join() serves one node only")
    model, optimizer = build()
    backward(model)
    with pytest.raises(UsageError, match=r"between backward\(\) and step\(\)"):
        hvd.join()
    optimizer.step()


def test_waiting_is_told_from_transfer():
    model, optimizer = build()
    events = []
    stop = listen(events.append)
    if hvd.rank() == 0:
        time.sleep(1.3)
    backward(model)
    optimizer.step()
    stop()
    waited_s = sum(e.wait_s for e in events if e.operation == "allreduce")
    # The arena waits in slices of half a second; between nodes MPI waits, and does not tell.
    assert waited_s > 1 or hvd.rank() == 0 or SEVERAL_NODES


def test_dropped_optimizers_leave_no_threads():
    gc.collect()
    hvd.barrier()
    before = threading.active_count()
    for _ in range(3):
        model, optimizer = build()
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
        del model, optimizer
        gc.collect()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() <= before, threading.enumerate()


def test_dropped_optimizers_leave_no_hooks():
    model, optimizer = build()
    for step in range(4):
        inner = torch.optim.SGD(model.parameters(), lr=0.01)
        optimizer = None
        gc.collect()
        assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
        optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    assert {len(p._post_accumulate_grad_hooks) for p in model.parameters()} == {1}
    assert_alike(model)


@pytest.mark.parametrize("sharded", [False, True])
def test_a_parameter_unfrozen_later_is_reduced(sharded):
    model, optimizer = build()
    late = model[0].weight
    late.requires_grad_(False)
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), sharded=sharded)
    for step in range(3 * STEPS):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        late.requires_grad_(step >= STEPS // 2)
        before = late.detach().clone()
        backward(model, step)
        own = torch.zeros_like(late) if late.grad is None else late.grad.clone()
        optimizer.step()
        if step == STEPS // 2:
            mean = hvd.allreduce(own, name="own")
            torch.testing.assert_close(late.detach(), before - 0.01 * mean)
        assert torch.equal(late.detach(), before) == (step < STEPS // 2)
    assert_alike(model)
