"""What scripts do with gradients: before the exchange, after it, and after the step."""

from __future__ import annotations

import warnings

import torch
from torch.nn.utils import clip_grad_value_

from tests.support.optimizer.sharding_patterns import STEPS, Run, pattern, refused

IN_PARTS = r"this rank has reduced only its part of the gradient of '.*': call zero_grad\(\)"


def synchronized(run: Run, model, optimizer, then, steps: int = STEPS) -> None:
    """Steps in which something is done to whole gradients."""
    for _ in range(steps):
        optimizer.zero_grad()
        run.loss(model).backward()
        optimizer.synchronize()
        then()
        with optimizer.skip_synchronize():
            optimizer.step()


def grads(model) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters()]


# Zeroing and accumulation


@pattern
def zeroed_after_the_step(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        run.loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()


@pattern
def zeroed_in_place(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        run.loss(model).backward()
        optimizer.step()


@pattern
def zeroed_in_place_by_the_model(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        run.loss(model).backward()
        optimizer.step()
        model.zero_grad(set_to_none=False)
        run.note(*grads(model))


@pattern
def zeroed_by_the_script(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        run.loss(model).backward()
        optimizer.step()
        for p in model.parameters():
            if p.grad is not None:
                p.grad.detach_()
                p.grad.zero_()


@pattern
def zeroed_through_data(run: Run) -> None:
    model, optimizer = run.setup()
    for step in range(STEPS):
        run.loss(model).backward()
        optimizer.step()
        for p in model.parameters():
            p.grad.data.fill_(0) if step % 2 else p.grad.data.zero_()


@pattern
def zeroed_all_at_once(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        run.loss(model).backward()
        optimizer.step()
        torch._foreach_zero_(grads(model))


@pattern
def set_to_none_by_the_script(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        for p in model.parameters():
            p.grad = None
        run.loss(model).backward()
        optimizer.step()


@refused(IN_PARTS)
def never_zeroed(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        run.loss(model).backward()
        optimizer.step()


@pattern
def never_zeroed_but_synchronized(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        run.loss(model).backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()


@pattern
def accumulated_over_passes(run: Run) -> None:
    model = run.model()
    optimizer = run.wrap(torch.optim.Adam(model.parameters()), backward_passes_per_step=3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(3):
            (run.loss(model) / 3).backward()
        optimizer.step()


@pattern
def accumulated_in_one_backward(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        optimizer.zero_grad()
        sum(run.loss(model) for _ in range(3)).backward()
        optimizer.step()


@pattern
def accumulated_over_more_passes_later(run: Run) -> None:
    model, optimizer = run.setup()
    for passes in (1, 2, 4):
        optimizer.set_backward_passes_per_step(passes)
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(passes):
                run.loss(model).backward()
            optimizer.step()


@pattern
def accumulated_over_fewer_passes_at_the_end(run: Run) -> None:
    model = run.model()
    optimizer = run.wrap(torch.optim.SGD(model.parameters(), lr=0.1), backward_passes_per_step=3)
    for passes in (3, 3, 3, 3, 1):
        optimizer.zero_grad()
        for _ in range(passes):
            run.loss(model).backward()
        optimizer.step()


@pattern
def computed_more_often_than_announced(run: Run) -> None:
    model, _optimizer = run.setup()
    run.loss(model).backward()
    run.loss(model).backward()


@pattern
def zeroed_during_the_exchange(run: Run) -> None:
    model, optimizer = run.setup()
    run.loss(model).backward()
    optimizer.zero_grad()


# Read and used again


@pattern
def read_between_synchronize_and_step(run: Run) -> None:
    model, optimizer = run.setup()
    synchronized(run, model, optimizer, lambda: run.note(*grads(model)))


@pattern
def read_after_the_step_of_what_was_synchronized(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        synchronized(run, model, optimizer, lambda: None, 1)
        run.note(*grads(model))


@refused(IN_PARTS)
def read_after_the_step(run: Run) -> None:
    model, optimizer = run.setup()
    run.step(model, optimizer)
    run.note(*(g.norm() for g in grads(model)))


@refused(IN_PARTS)
def read_as_an_array_after_the_step(run: Run) -> None:
    model, optimizer = run.setup()
    run.step(model, optimizer)
    model[0].weight.grad.numpy()


@refused(IN_PARTS)
def printed_after_the_step(run: Run) -> None:
    model, optimizer = run.setup()
    run.step(model, optimizer)
    str(model[0].weight.grad)


@refused(IN_PARTS)
def added_to_weights_after_the_step(run: Run) -> None:
    model, optimizer = run.setup()
    run.step(model, optimizer)
    with torch.no_grad():
        model[0].weight.add_(model[0].weight.grad)


@refused(IN_PARTS)
def averaged_by_the_script_after_the_step(run: Run) -> None:
    import hvd_ext.torch as hvd

    model, optimizer = run.setup()
    run.step(model, optimizer)
    hvd.allreduce_(model[0].weight.grad)


@pattern
def described_after_the_step(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        run.step(model, optimizer)
        for p in model.parameters():
            assert p.grad is not None
            assert (p.grad.shape, p.grad.dtype) == (p.shape, p.dtype)
            assert p.grad.numel() == p.numel()
            assert not p.grad.is_sparse


@refused(IN_PARTS)
def read_in_a_hook_of_the_step(run: Run) -> None:
    model, optimizer = run.setup()
    optimizer.register_step_pre_hook(lambda *_: clip_grad_value_(model.parameters(), 1e-3))
    run.step(model, optimizer)


@pattern
def changed_in_a_hook_of_the_step_of_what_was_synchronized(run: Run) -> None:
    model, optimizer = run.setup(torch.optim.SGD)

    def change(*_) -> None:
        for number, p in enumerate(model.parameters()):
            p.grad = p.grad * 0.5 if number % 2 else p.grad.mul_(0.5)

    optimizer.register_step_pre_hook(change)
    synchronized(run, model, optimizer, lambda: None)


@refused(IN_PARTS)
def step_taken_twice(run: Run) -> None:
    model, optimizer = run.setup()
    run.step(model, optimizer)
    optimizer.step()


@pattern
def step_taken_twice_of_what_was_synchronized(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        synchronized(run, model, optimizer, lambda: None, 1)
        with optimizer.skip_synchronize():
            optimizer.step()


@pattern
def synchronized_twice(run: Run) -> None:
    model, optimizer = run.setup()
    synchronized(run, model, optimizer, optimizer.synchronize)


@pattern
def synchronized_twice_and_step_twice(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(3):
        synchronized(run, model, optimizer, optimizer.synchronize, 1)
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()


@pattern
def synchronized_and_exchanged_again(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        optimizer.zero_grad()
        run.loss(model).backward()
        optimizer.synchronize()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer.step()


@pattern
def step_before_any_backward(run: Run) -> None:
    model, optimizer = run.setup(weight_decay=0.1)
    optimizer.step()
    optimizer.zero_grad()
    for _ in range(STEPS):
        run.step(model, optimizer)


@pattern
def made_by_the_script(run: Run) -> None:
    model, optimizer = run.setup()
    for step in range(STEPS):
        for p in model.parameters():
            p.grad = torch.full_like(p, run.rank + step)
        optimizer.step()


@pattern
def made_by_autograd_grad(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        found = torch.autograd.grad(run.loss(model), list(model.parameters()))
        for p, grad in zip(model.parameters(), found, strict=True):
            p.grad = grad
        optimizer.step()


@pattern
def noise_is_added(run: Run) -> None:
    model, optimizer = run.setup()
    generator = torch.Generator().manual_seed(0)
    synchronized(
        run,
        model,
        optimizer,
        lambda: [g.add_(torch.randn(g.shape, generator=generator)) for g in grads(model)],
    )


@pattern
def some_are_dropped_after_synchronize(run: Run) -> None:
    model, optimizer = run.setup(weight_decay=0.1)
    synchronized(run, model, optimizer, lambda: setattr(model[0].bias, "grad", None))


@pattern
def hooks_of_tensors_change_them(run: Run) -> None:
    model, optimizer = run.setup()
    model[0].weight.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))
    model[2].register_full_backward_hook(lambda _, inputs, outputs: (inputs[0] * 2,))
    for _ in range(STEPS):
        run.step(model, optimizer)


@pattern
def summed(run: Run) -> None:
    import hvd_ext.torch as hvd

    model = run.model()
    optimizer = run.wrap(torch.optim.SGD(model.parameters(), lr=0.01), op=hvd.Sum)
    for _ in range(STEPS):
        run.step(model, optimizer)


@pattern
def changed_during_the_exchange(run: Run) -> None:
    model, optimizer = run.setup()
    run.loss(model).backward()
    model[0].weight.grad.mul_(2)
    optimizer.step()
