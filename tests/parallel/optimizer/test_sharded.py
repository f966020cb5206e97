"""The sharded optimizer: the bits of the unsharded one, a part of the state on each rank."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

import hvd_ext.torch
from hvd_ext.torch.job import lifecycle
from hvd_ext.torch.sharded import shards
from tests.ranks.asserts import assert_same_bits, parallel_assert
from tests.support.arena.pretended_nodes import pretend
from tests.support.optimizer.sharding import (
    OPTIMIZERS,
    assert_same_state,
    build,
    parameters,
    take_step,
    train,
    wrap,
)

# Shards of three ranks are the unevenest.
TWO, FOUR = (pytest.param(number, marks=pytest.mark.long) for number in (2, 4))


@pytest.fixture(autouse=True)
def several_parts_of_a_parameter(monkeypatch):
    monkeypatch.setattr(shards, "_PART_BYTES", 1 << 10)


def assert_equal(comm, model, expected) -> None:
    """Both models have the same bits, on all ranks."""
    flat = [torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (model, expected)]
    parallel_assert(comm, torch.equal(*flat), (flat[0] - flat[1]).abs().max())
    assert_same_bits(comm, flat[0].numpy())


def state_bytes(optimizer) -> int:
    states = getattr(optimizer, "own_state", optimizer.state)
    return sum(
        value.numel() * value.element_size()
        for state in states.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.ndim
    )


IN_TURNS = [
    pytest.param(
        name, layout, marks=[pytest.mark.long] * (number % 8 != (1 if layout == "two" else 4))
    )
    for number, name in enumerate(sorted(OPTIMIZERS))
    for layout in ("one", "two")
]


@pytest.mark.ranks(TWO, 3, FOUR)
@pytest.mark.parametrize(("name", "layout"), IN_TURNS)
def test_bits_and_state_are_those_of_the_unsharded(comm, hvd, name, layout):
    model, optimizer = train(True, name=name, layout=layout)
    expected, plain = train(False, name=name, layout=layout)
    assert_equal(comm, model, expected)
    assert_same_state(optimizer.state_dict(), plain.state_dict())
    share = state_bytes(optimizer) / state_bytes(plain)
    assert share == pytest.approx(1 / comm.size, rel=0.1)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("ranks_per_node", [pytest.param(1, marks=pytest.mark.long), 2])
def test_on_several_nodes(comm, hvd, monkeypatch, ranks_per_node):
    pretended = pretend(comm, ranks_per_node)
    monkeypatch.setattr(lifecycle, "topology", lambda: pretended)
    # Between three nodes and more the order of a sum depends on the layout.
    monkeypatch.setenv("HVD_EXT_BUCKET_BYTES", "2 KiB")
    model, optimizer = train(True, 4)
    expected, plain = train(False, 4)
    assert_equal(comm, model, expected)
    assert_same_state(optimizer.state_dict(), plain.state_dict())
    optimizer._reducer.close()
    plain._reducer.close()


@pytest.mark.ranks(TWO, 3)
def test_clipping_gives_the_norm_and_the_steps_of_torchs(comm, hvd):
    runs = {}
    for sharded in (True, False):
        model = build()
        optimizer = wrap(model, sharded, "sgd")
        norms = []
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(4, 3, 6, 6)).square().mean().backward()
            if sharded:
                norms.append(optimizer.clip_grad_norm_(0.05).item())
                optimizer.step()
            else:
                optimizer.synchronize()
                norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05).item())
                with optimizer.skip_synchronize():
                    optimizer.step()
        runs[sharded] = norms, parameters(model)
    assert runs[True][0] == pytest.approx(runs[False][0], rel=1e-6)
    assert len({tuple(norms) for norms in comm.allgather(runs[True][0])}) == 1
    for ours, theirs in zip(runs[True][1], runs[False][1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.ranks(TWO, 3)
@pytest.mark.parametrize(
    "norm_type", [2.0, *(pytest.param(x, marks=pytest.mark.long) for x in (1.0, float("inf")))]
)
def test_the_unsharded_clips_by_the_same_call(comm, hvd, norm_type):
    norms = []
    for sharded in (True, False):
        model = build()
        optimizer = wrap(model, sharded, "sgd")
        model(torch.randn(4, 3, 6, 6)).square().mean().backward()
        norms.append(optimizer.clip_grad_norm_(1e9, norm_type).item())
        optimizer.step()
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)


@pytest.mark.ranks(3)
def test_a_norm_that_is_not_finite(comm, hvd):
    model = build()
    optimizer = wrap(model, True)
    (model(torch.randn(4, 3, 6, 6)).sum() * float("inf")).backward()
    with pytest.raises(RuntimeError, match=r"norm of order 2\.0 is "):
        optimizer.clip_grad_norm_(1.0, error_if_nonfinite=True)


@pytest.mark.ranks(3)
def test_clipping_by_a_norm_that_is_not_a_number_spoils_every_weight(comm, hvd):
    """As torch's does: a rank whose gradients are finite must not go on alone."""
    model = build()
    optimizer = wrap(model, True, "sgd")
    (model(torch.randn(4, 3, 6, 6)).sum() + model.scale * float("nan")).backward()
    assert optimizer.clip_grad_norm_(1.0).isnan()
    optimizer.step()
    assert all(p.isnan().all() for p in model.parameters())


def by_synchronize_and_torchs_clipping(model, optimizer):
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, 3, 6, 6)).square().mean().backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        with optimizer.skip_synchronize():
            optimizer.step()


def by_gradients_of_its_own(model, optimizer):
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, 3, 6, 6)).square().mean().backward()
        optimizer.synchronize()
        for p in model.parameters():
            p.grad = p.grad * 0.5
        with optimizer.skip_synchronize():
            optimizer.step()


def with_a_schedule(model, optimizer):
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for _ in range(7):
        take_step(model, optimizer)
        schedule.step()


def with_weights_changed_between(model, optimizer):
    average = copy.deepcopy(model)
    for step in range(7):
        take_step(model, optimizer)
        with torch.no_grad():
            for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(p, 0.1)
                p.clamp_(-0.3, 0.3).mul_(0.99)
        if step == 2:
            for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                p.data = mean.detach().clone()
        if step == 4:
            model.load_state_dict(average.state_dict())


def with_a_parameter_without_gradients(model, optimizer):
    for _ in range(6):
        optimizer.zero_grad()
        features = F.relu(model.conv(torch.randn(4, 3, 6, 6))).mean((2, 3))
        model.hidden(features).square().mean().backward()
        optimizer.step()


def with_gradients_zeroed_in_place(model, optimizer):
    for _ in range(6):
        optimizer.zero_grad(set_to_none=False)
        model(torch.randn(4, 3, 6, 6)).square().mean().backward()
        optimizer.step()


def with_a_group_added(model, optimizer):
    take_step(model, optimizer)
    late = torch.nn.Linear(5, 3)
    late.load_state_dict({"weight": torch.ones(3, 5), "bias": torch.zeros(3)})
    optimizer.add_param_group({"params": late.parameters(), "lr": 0.1})
    for _ in range(6):
        optimizer.zero_grad()
        late(model(torch.randn(4, 3, 6, 6))).square().mean().backward()
        optimizer.step()
    model.late = late


def with_two_passes(model, optimizer):
    optimizer.set_backward_passes_per_step(2)
    for _ in range(6):
        take_step(model, optimizer, passes=2)


def loaded_in_between(model, optimizer):
    for _ in range(2):
        take_step(model, optimizer)
    held = copy.deepcopy(optimizer.state_dict())
    for _ in range(3):
        take_step(model, optimizer)
    optimizer.load_state_dict(held)
    for _ in range(3):
        take_step(model, optimizer)


def loaded_on_rank_0(model, optimizer):
    for _ in range(3):
        take_step(model, optimizer)
    state = optimizer.state_dict()
    if hvd_ext.torch.rank() == 0:
        state["param_groups"][0]["lr"] = 1e-3
        optimizer.load_state_dict(state)
    if "sharded: " in optimizer.explain():
        hvd_ext.torch.broadcast_optimizer_state(optimizer, root_rank=0)
    else:  # Horovod broadcasts no tensor that is channels_last
        optimizer.load_state_dict(hvd_ext.torch.broadcast_object(state, root_rank=0))
    for _ in range(3):
        take_step(model, optimizer)


WAYS = [
    by_synchronize_and_torchs_clipping,
    by_gradients_of_its_own,
    with_a_schedule,
    with_weights_changed_between,
    with_a_parameter_without_gradients,
    with_gradients_zeroed_in_place,
    with_a_group_added,
    with_two_passes,
    loaded_in_between,
    loaded_on_rank_0,
]


@pytest.mark.ranks(TWO, 3)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_programs_do_gives_the_bits_of_the_unsharded(comm, hvd, way):
    models = []
    for sharded in (True, False):
        models.append(build())
        way(models[-1], wrap(models[-1], sharded))
    assert_equal(comm, *models)


@pytest.mark.ranks(3)
def test_hooks_are_called_once_with_the_users_optimizer_and_whole_parameters(comm, hvd):
    model = build()
    optimizer = wrap(model, True, "sgd")
    seen = []
    optimizer.register_step_pre_hook(lambda o, *_: seen.append((o, parameters(model))))
    optimizer.register_step_post_hook(lambda o, *_: seen.append((o, parameters(model))))
    for _ in range(6):
        seen.append((optimizer, parameters(model)))
        take_step(model, optimizer)
    assert [o for o, _ in seen] == [optimizer] * 18
    for step in range(1, 6):  # as the step before left them
        last, *same = (held for _, held in seen[3 * step - 1 : 3 * step + 2])
        assert all(all(map(torch.equal, last, held)) for held in same)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("late", ["before", "in_a_hook", "in_a_closure"])
def test_a_late_rank_keeps_its_weights_until_its_own_update(comm, hvd, late):
    model = build()
    optimizer = wrap(model, True, "sgd")

    def look(*_):
        for _ in range(2000 if comm.rank == 1 else 0):
            assert all(map(torch.equal, before, model.parameters()))

    if late == "in_a_hook":
        optimizer.register_step_pre_hook(look)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, 3, 6, 6)).square().mean().backward()
        before = parameters(model)
        comm.bcast(None)  # rank 0 is about to step
        if late == "before":
            look()
        optimizer.step(look if late == "in_a_closure" else None)


@pytest.mark.ranks(3)
def test_the_variable_shards_what_is_not_told(comm, hvd, monkeypatch):
    monkeypatch.setenv("HVD_EXT_SHARDED", "1")
    model = build()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()))
    take_step(model, optimizer)
    assert "sharded: " in optimizer.explain()
    assert "sharded: " not in wrap(build(), False).explain()
