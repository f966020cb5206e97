"""What scripts do with the optimizer itself: state, schedules, closures, hooks, checkpoints."""

from __future__ import annotations

import copy
import io
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

import torch

import hvd_ext.torch as hvd
from tests.support.optimizer.sharding_patterns import STEPS, Run, pattern, refused

NOT_READ = r"optimizer\.state cannot be read after a step"
schedules = torch.optim.lr_scheduler


def steps(run: Run, model, optimizer, count: int = STEPS) -> None:
    for _ in range(count):
        run.step(model, optimizer)


# State


@pattern
def state_is_cleared(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(3):
        steps(run, model, optimizer, 3)
        optimizer.state.clear()


@pattern
def state_is_replaced(run: Run) -> None:
    model, optimizer = run.setup(torch.optim.SGD, momentum=0.9)
    for _ in range(3):
        steps(run, model, optimizer, 3)
        optimizer.state = defaultdict(dict)


@pattern
def state_of_a_parameter_is_popped(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(3):
        steps(run, model, optimizer, 3)
        optimizer.state.pop(model[0].weight)
        optimizer.state.pop(model[2].bias, None)


@pattern
def state_of_a_parameter_is_deleted(run: Run) -> None:
    model, optimizer = run.setup()
    steps(run, model, optimizer)
    del optimizer.state[model[0].weight]
    steps(run, model, optimizer)


@pattern
def state_of_a_parameter_is_given(run: Run) -> None:
    model, optimizer = run.setup(torch.optim.SGD, momentum=0.9)
    steps(run, model, optimizer)
    weight = model[0].weight
    optimizer.state[weight] = {"momentum_buffer": torch.ones_like(weight)}
    steps(run, model, optimizer)


@pattern
def state_is_empty_before_the_first_step(run: Run) -> None:
    model, optimizer = run.setup()
    assert not optimizer.state
    assert model[0].weight not in optimizer.state
    assert optimizer.state.get(model[0].weight) is None
    steps(run, model, optimizer)


@refused(NOT_READ)
def state_is_scaled_in_place(run: Run) -> None:
    model, optimizer = run.setup()
    steps(run, model, optimizer)
    for state in optimizer.state.values():
        state["exp_avg"].mul_(0.5)


@refused(NOT_READ)
def state_of_a_parameter_is_read(run: Run) -> None:
    model, optimizer = run.setup()
    steps(run, model, optimizer)
    run.note(optimizer.state[model[0].weight]["exp_avg"])


@refused(NOT_READ)
def state_is_looked_for(run: Run) -> None:
    model, optimizer = run.setup()
    steps(run, model, optimizer)
    if len(optimizer.state) == 0 or model[0].weight not in optimizer.state:
        steps(run, model, optimizer)


@refused(NOT_READ)
def state_is_popped_for_another_parameter(run: Run) -> None:
    model, optimizer = run.setup()
    steps(run, model, optimizer)
    optimizer.state[model[2].weight] = dict(optimizer.state.pop(model[0].weight))


@pattern
def state_is_edited_after_it_was_loaded(run: Run) -> None:
    model, optimizer = run.setup()
    steps(run, model, optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    for state in optimizer.state.values():
        state["exp_avg"].zero_()
    steps(run, model, optimizer)


@pattern
def state_is_edited_in_what_is_saved(run: Run) -> None:
    model, optimizer = run.setup()
    steps(run, model, optimizer)
    saved = optimizer.state_dict()
    for state in saved["state"].values():
        state["exp_avg_sq"].mul_(2)
    saved["state"].pop(0)
    saved["param_groups"][0]["lr"] = 0.1
    optimizer.load_state_dict(saved)
    steps(run, model, optimizer)


# Checkpoints


@pattern
def saved_and_loaded(run: Run) -> None:
    model, optimizer = run.setup(amsgrad=True)
    steps(run, model, optimizer)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    resumed, its = run.setup(amsgrad=True)
    resumed.load_state_dict(saved["model"])
    its.load_state_dict(saved["optimizer"])
    steps(run, resumed, its)


@pattern
def loaded_before_it_is_wrapped(run: Run) -> None:
    model, optimizer = run.setup()
    steps(run, model, optimizer)
    resumed = run.model()
    inner = torch.optim.Adam(resumed.parameters(), lr=1e-2)
    inner.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    its = run.wrap(inner)
    steps(run, resumed, its)


@pattern
def drawn_back(run: Run) -> None:
    model, optimizer = run.setup()
    steps(run, model, optimizer, 2)
    held = copy.deepcopy(optimizer.state_dict())
    steps(run, model, optimizer, 4)
    optimizer.load_state_dict(held)
    steps(run, model, optimizer, 2)


@pattern
def a_checkpoint_of_another_optimizer(run: Run) -> None:
    model, optimizer = run.setup()
    steps(run, model, optimizer)
    other = torch.optim.Adam([torch.nn.Parameter(torch.ones(3))])
    with suppress(ValueError):
        optimizer.load_state_dict(other.state_dict())
    steps(run, model, optimizer)


@pattern
def saved_after_every_step(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        run.step(model, optimizer)
        run.note(*(s["exp_avg"] for s in optimizer.state_dict()["state"].values()))


@pattern
def hooks_of_checkpoints(run: Run) -> None:
    model, optimizer = run.setup()
    optimizer.register_state_dict_post_hook(lambda _, saved: saved | {"kept": len(saved["state"])})
    optimizer.register_load_state_dict_pre_hook(
        lambda _, saved: run.note(torch.tensor(saved["kept"]))
    )
    steps(run, model, optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    steps(run, model, optimizer)


# Broadcasts


def _broadcast(kind, **options):
    def broadcast(run: Run) -> None:
        model, optimizer = run.setup(kind, **options)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        run.note(*model.parameters(), *(p.grad for p in model.parameters()))
        steps(run, model, optimizer)

    return broadcast


@pattern
def broadcast_of_a_fresh_state(run: Run) -> None:
    _broadcast(torch.optim.Adam)(run)


@pattern
def broadcast_of_a_fresh_state_with_weight_decay(run: Run) -> None:
    _broadcast(torch.optim.AdamW, weight_decay=0.1)(run)
    _broadcast(torch.optim.SGD, weight_decay=0.1, momentum=0.9)(run)


@pattern
def broadcast_of_no_state(run: Run) -> None:
    _broadcast(torch.optim.SGD)(run)


@pattern
def broadcast_before_it_is_wrapped(run: Run) -> None:
    model = run.model()
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    hvd.broadcast_optimizer_state(inner, root_rank=0)
    steps(run, model, run.wrap(inner))


@pattern
def broadcast_after_steps(run: Run) -> None:
    model, optimizer = run.setup()
    steps(run, model, optimizer)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    steps(run, model, optimizer)


@pattern
def broadcast_of_what_one_rank_has_loaded(run: Run) -> None:
    _broadcast_of_what_some_have_loaded(run, lambda rank: rank == 0)


@pattern
def broadcast_of_a_fresh_state_to_ranks_that_have_loaded(run: Run) -> None:
    _broadcast_of_what_some_have_loaded(run, lambda rank: rank != 0)


def _broadcast_of_what_some_have_loaded(run: Run, loads: Callable[[int], bool]) -> None:
    model, optimizer = run.setup(torch.optim.AdamW, weight_decay=0.5)
    steps(run, model, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    resumed, its = run.setup(torch.optim.AdamW, weight_decay=0.5)
    if loads(run.rank):
        its.load_state_dict(saved)
    hvd.broadcast_optimizer_state(its, root_rank=0)
    steps(run, resumed, its)
    weights = torch.cat([p.detach().flatten() for p in resumed.parameters()])
    assert len(set(hvd.allgather_object(weights.numpy().tobytes()))) == 1


# Schedules


def _scheduled(name: str, make) -> None:
    def scheduled(run: Run) -> None:
        model, optimizer = run.setup(torch.optim.SGD, lr=0.1, momentum=0.9)
        schedule = make(optimizer)
        for _ in range(8):
            run.step(model, optimizer)
            schedule.step()
            run.note(torch.tensor(schedule.get_last_lr()))

    scheduled.__name__ = f"schedule_{name}"
    pattern(scheduled)


for _name, _make in {
    "step": lambda o: schedules.StepLR(o, 2, 0.5),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, 8),
    "lambda": lambda o: schedules.LambdaLR(o, lambda step: 1 / (1 + step)),
    "one_cycle_with_momentum": lambda o: schedules.OneCycleLR(o, 0.2, total_steps=20),
    "warm_up": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, 0.1, total_iters=3), schedules.ExponentialLR(o, 0.9)], [3]
    ),
}.items():
    _scheduled(_name, _make)


@pattern
def schedule_made_before_it_is_wrapped(run: Run) -> None:
    model = run.model()
    inner = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = schedules.StepLR(inner, 2, 0.5)
    optimizer = run.wrap(inner)
    for _ in range(8):
        run.step(model, optimizer)
        schedule.step()


@pattern
def schedule_by_the_loss(run: Run) -> None:
    model, optimizer = run.setup()
    schedule = schedules.ReduceLROnPlateau(optimizer, patience=1)
    for loss in (1.0, 2.0, 3.0, 4.0, 0.5, 0.6, 0.7):
        run.step(model, optimizer)
        schedule.step(loss)


# Closures and hooks


@pattern
def closure_that_gives_the_loss(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = run.loss(model)
        loss.backward()
        run.note(optimizer.step(lambda loss=loss: loss))


@pattern
def closure_that_reads_parameters(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        optimizer.zero_grad()
        run.loss(model).backward()
        with torch.no_grad():
            run.note(optimizer.step(lambda: model(torch.ones(1, 7)).sum()))


@pattern
def closure_that_changes_gradients(run: Run) -> None:
    model, optimizer = run.setup(torch.optim.SGD)

    def change() -> None:
        for p in model.parameters():
            p.grad = p.grad * 2

    for _ in range(STEPS):
        optimizer.zero_grad()
        run.loss(model).backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step(change)


@refused("with gradients that ranks have not exchanged: pass no closure")
def closure_that_calls_backward(run: Run) -> None:
    model, optimizer = run.setup()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = run.loss(model)
        loss.backward()
        return loss

    optimizer.step(closure)


@pattern
def hooks_of_the_step(run: Run) -> None:
    model, optimizer = run.setup()
    for register in (optimizer.register_step_pre_hook, optimizer.register_step_post_hook):
        register(lambda its, *_: run.note(*its.param_groups[0]["params"]))
    optimizer.register_step_pre_hook(lambda its, *_: its.param_groups[0].update(lr=0.1))
    steps(run, model, optimizer)


@pattern
def step_is_replaced(run: Run) -> None:
    model, optimizer = run.setup()
    original = optimizer.step

    def step(*args, **kwargs):
        with torch.no_grad():
            model[0].weight.mul_(0.9)
        return original(*args, **kwargs)

    optimizer.step = step
    steps(run, model, optimizer)
