"""What hvd_ext's optimizer promises beyond Horovod's: views, late groups, errors."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path

import pytest
import torch

import hvd_ext.torch as hvd
from hvd_ext import listen
from hvd_ext.errors import UsageError
from hvd_ext.torch import reducers
from hvd_ext.torch.job import background

IN_LONG = [pytest.param(size, marks=pytest.mark.long) for size in (1, 3, 4)]
pytestmark = [
    pytest.mark.ranks(2, *IN_LONG, launcher="horovodrun"),
    pytest.mark.usefixtures("hvd"),
    pytest.mark.filterwarnings("error", "ignore:.*lr_scheduler"),
]


def model_and_optimizer(**arguments):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 2))
    inner = torch.optim.SGD(model.parameters(), lr=0.5)
    return model, hvd.DistributedOptimizer(
        inner, named_parameters=model.named_parameters(), **arguments
    )


def backward(model):
    model(torch.full((3, 6), 1.0 + hvd.rank())).sum().backward()


def test_gradients_stay_where_they_are():
    model, optimizer = model_and_optimizer()
    backward(model)
    optimizer.step()
    places = [p.grad.data_ptr() for p in model.parameters()]
    for zero in (True, False):
        optimizer.zero_grad(set_to_none=zero)
        for p in model.parameters():
            assert (p.grad is None) if zero else not p.grad.any()
        backward(model)
        optimizer.step()
        if hvd.size() > 1:
            assert [p.grad.data_ptr() for p in model.parameters()] == places
    if hvd.size() > 1:
        maps = Path("/proc/self/maps").read_text()
        assert "memfd:hvd_ext" in maps


def test_a_replaced_gradient_is_exchanged():
    model, optimizer = model_and_optimizer()
    backward(model)
    optimizer.synchronize()
    for p in model.parameters():
        p.grad = torch.full_like(p, float(hvd.rank()))
    optimizer.synchronize()
    expected = sum(range(hvd.size())) / hvd.size()
    for p in model.parameters():
        assert torch.allclose(p.grad, torch.full_like(p, expected))
    with optimizer.skip_synchronize():
        optimizer.step()


def test_a_group_added_later_is_reduced():
    model, optimizer = model_and_optimizer()
    backward(model)
    optimizer.step()
    extra = torch.nn.Parameter(torch.zeros(11))
    optimizer.add_param_group({"params": [extra], "lr": 1.0})
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.ones(1, 6)).sum() + (extra * (hvd.rank() + 1)).sum()).backward()
        optimizer.step()
        assert torch.allclose(extra.grad, torch.full((11,), (hvd.size() + 1) / 2))
    assert torch.allclose(extra, torch.full((11,), -(hvd.size() + 1.0)))


def test_one_pass_too_many():
    model, optimizer = model_and_optimizer()
    backward(model)
    if hvd.size() > 1:
        with pytest.raises(AssertionError, match="backward_passes_per_step"):
            backward(model)
        with pytest.raises(AssertionError, match="zero_grad"):
            optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()


def test_a_second_synchronize_is_warned_of():
    model, optimizer = model_and_optimizer()
    backward(model)
    optimizer.synchronize()
    # Scripts filter it by Horovod's words.
    with pytest.warns(
        UserWarning, match=r"optimizer.step\(\) called without optimizer.skip_synchronize\(\)"
    ):
        optimizer.step()


def test_names_are_where_horovod_has_them():
    model, optimizer = model_and_optimizer()
    assert optimizer._parameter_names == {p: name for name, p in model.named_parameters()}


def test_bad_names():
    model = torch.nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    for names, says in (
        ([("a", model.weight), ("a", model.bias)], "duplicates: a"),
        ([("a", model.weight)], "1 of the optimizer's parameters"),
        ([model.weight, model.bias], "sequence of tuples"),
    ):
        with pytest.raises(ValueError, match=says):
            hvd.DistributedOptimizer(inner, named_parameters=names)
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        hvd.DistributedOptimizer(inner, backward_passes_per_step=0)


def test_empty_and_scalar_parameters():
    parameters = [torch.nn.Parameter(torch.zeros(s)) for s in ((0,), (), (3, 0, 2), (1,))]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0))
    sum((p * (hvd.rank() + 1)).sum() for p in parameters).backward()
    optimizer.step()
    assert parameters[1].item() == -(hvd.size() + 1) / 2
    assert parameters[3].item() == -(hvd.size() + 1) / 2


def test_half_precision_sums():
    for dtype in (torch.float16, torch.bfloat16):
        parameter = torch.nn.Parameter(torch.zeros(1000, dtype=dtype))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
        # The sum overflows 16 bits, the average does not.
        parameter.grad = torch.full_like(parameter, 40000.0)
        optimizer.synchronize()
        assert torch.equal(parameter.grad, torch.full_like(parameter, 40000.0))


def test_every_exchange_is_an_event():
    events = []
    stop = listen(events.append)
    model, optimizer = model_and_optimizer()
    backward(model)
    optimizer.step()
    stop()
    if hvd.size() > 1:
        assert [e.operation for e in events] == ["allreduce"]
        assert events[0].size == hvd.size()
        assert events[0].message_bytes >= 4 * sum(p.numel() for p in model.parameters())
        assert events[0].wait_s >= 0
        assert events[0].transfer_s > 0


@pytest.mark.long
def test_many_optimizers_leave_nothing():
    # The first one opens what all of them share.
    model, optimizer = model_and_optimizer()
    backward(model)
    optimizer.step()
    del model, optimizer
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    threads = threading.active_count()
    for _ in range(20):
        model, optimizer = model_and_optimizer()
        backward(model)
        optimizer.step()
        del model, optimizer
        gc.collect()
    # They are closed on their own threads.
    deadline = time.monotonic() + 10
    while len(os.listdir("/proc/self/fd")) > descriptors and time.monotonic() < deadline:  # noqa: PTH208
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) <= descriptors  # noqa: PTH208
    assert threading.active_count() <= threads + 2
    maps = Path("/proc/self/maps").read_text()
    assert maps.count("memfd:hvd_ext") <= 2 * hvd.size()


def test_horovods_thread_steps_aside(monkeypatch):
    # The fixture has it stay.
    monkeypatch.setattr(reducers, "lower_thread_priority", background.lower_thread_priority)
    _ = model_and_optimizer()
    policies = [
        os.sched_getscheduler(int(task))
        for task in os.listdir("/proc/self/task")  # noqa: PTH208
    ]
    aside = hvd.size() > 1 and hvd.size() <= len(os.sched_getaffinity(0))
    assert policies.count(os.SCHED_IDLE) == (1 if aside else 0)
    assert os.sched_getscheduler(0) == os.SCHED_OTHER  # its own thread only
    # It still serves the script's own exchanges.
    found = hvd.allreduce(torch.tensor([1.0 + hvd.rank()]), op=hvd.Sum)
    assert found.item() == hvd.size() * (hvd.size() + 1) / 2


def test_every_public_name_is_there():
    import horovod.torch

    names = {name for name in dir(horovod.torch) if not name.startswith("_")}
    assert {name for name in names if not hasattr(hvd, name)} == set()
    assert hvd.DistributedOptimizer is not horovod.torch.DistributedOptimizer


def test_horovods_own_broadcast_makes_state_by_a_step_without_an_exchange():
    """On ranks that have none: the others take no step meanwhile."""
    from horovod.torch.functions import broadcast_optimizer_state

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    inner = torch.optim.Adam(model.parameters(), lr=0.1)
    if hvd.rank() == 0:
        model(torch.ones(1, 3)).sum().backward()
        inner.step()
        inner.zero_grad()
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    model(torch.full((1, 3), 1.0 + hvd.rank())).sum().backward()
    optimizer.step()
    steps = [state["step"].item() for state in optimizer.state.values()]
    assert steps == [2.0, 2.0]
    weights = hvd.allgather(model.weight.detach()[None])
    assert torch.equal(weights, weights[:1].expand_as(weights))


def test_an_optimizer_is_wrapped_once():
    _, optimizer = model_and_optimizer()
    with pytest.raises(UsageError, match="that it has wrapped: give it the plain one"):
        hvd.DistributedOptimizer(optimizer)
