"""How scripts clip gradients, and what they do with numbers that are not finite."""

from __future__ import annotations

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from tests.support.optimizer.sharding_patterns import STEPS, Run, pattern, refused
from tests.support.optimizer.sharding_patterns.gradients import IN_PARTS, grads, synchronized


@pattern
def clipped_by_norm(run: Run) -> None:
    model, optimizer = run.setup(torch.optim.SGD)
    synchronized(run, model, optimizer, lambda: run.note(clip_grad_norm_(model.parameters(), 1e-3)))


@pattern
def clipped_by_norm_of_each_layer(run: Run) -> None:
    model, optimizer = run.setup()
    synchronized(
        run, model, optimizer, lambda: [clip_grad_norm_(p, 1e-2, 1.0) for p in model.parameters()]
    )


@pattern
def clipped_by_value(run: Run) -> None:
    model, optimizer = run.setup(torch.optim.SGD)
    synchronized(run, model, optimizer, lambda: clip_grad_value_(model.parameters(), 1e-3))


@pattern
def clipped_by_new_tensors(run: Run) -> None:
    model, optimizer = run.setup(torch.optim.SGD)

    def clip() -> None:
        for p in model.parameters():
            p.grad = p.grad.clamp(-1e-3, 1e-3)

    synchronized(run, model, optimizer, clip)


@pattern
def clipped_through_data(run: Run) -> None:
    model, optimizer = run.setup(torch.optim.SGD)
    synchronized(run, model, optimizer, lambda: [g.data.clamp_(-1e-3, 1e-3) for g in grads(model)])


@pattern
def clipped_by_the_optimizer_to_more_than_there_is(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        optimizer.zero_grad()
        run.loss(model).backward()
        optimizer.clip_grad_norm_(1e6)
        optimizer.step()


@pattern
def clipped_by_the_optimizer_by_the_largest_element(run: Run) -> None:
    model, optimizer = run.setup(torch.optim.SGD)
    for _ in range(STEPS):
        optimizer.zero_grad()
        run.loss(model).backward()
        run.note(optimizer.clip_grad_norm_(1e-3, float("inf")))
        optimizer.step()


@pattern
def clipped_by_the_optimizer_after_they_were_replaced(run: Run) -> None:
    model, optimizer = run.setup(torch.optim.SGD)
    for _ in range(STEPS):
        optimizer.zero_grad()
        run.loss(model).backward()
        optimizer.synchronize()
        for p in model.parameters():
            p.grad = p.grad * 3
        run.note(optimizer.clip_grad_norm_(1e-3, float("inf")))
        optimizer.step()


@refused(IN_PARTS)
def clipped_by_the_optimizer_after_synchronize_and_read(run: Run) -> None:
    model, optimizer = run.setup()
    run.loss(model).backward()
    optimizer.synchronize()
    optimizer.clip_grad_norm_(1e-3)
    run.note(*(g.abs() for g in grads(model)))


@refused(IN_PARTS)
def clipped_after_the_step(run: Run) -> None:
    model, optimizer = run.setup()
    run.step(model, optimizer)
    clip_grad_norm_(model.parameters(), 1.0)


@refused(IN_PARTS)
def clipped_by_the_optimizer_and_read(run: Run) -> None:
    model, optimizer = run.setup()
    run.loss(model).backward()
    optimizer.clip_grad_norm_(1.0)
    run.note(*(g.abs() for g in grads(model)))


# Numbers that are none


@pattern
def not_a_number_on_one_rank(run: Run) -> None:
    model, optimizer = run.setup()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = run.loss(model)
        (loss * float("nan") if step == 3 and run.rank == 0 else loss).backward()
        optimizer.step()


@pattern
def not_a_number_clipped_by_the_optimizer(run: Run) -> None:
    model, optimizer = run.setup(torch.optim.SGD)
    run.loss(model).backward()
    optimizer.synchronize()
    model[0].weight.grad[0, 0] = float("nan")
    run.note(optimizer.clip_grad_norm_(1e6))
    optimizer.step()


@pattern
def infinite_clipped_by_the_optimizer(run: Run) -> None:
    model, optimizer = run.setup(torch.optim.SGD)
    run.loss(model).backward()
    optimizer.synchronize()
    model[2].bias.grad[1] = float("inf")
    run.note(optimizer.clip_grad_norm_(1.0))
    optimizer.step()


@pattern
def step_skipped_if_not_finite(run: Run) -> None:
    model, optimizer = run.setup()
    for step in range(STEPS):
        optimizer.zero_grad()
        (run.loss(model) * (float("inf") if step % 2 and run.rank == 0 else 1)).backward()
        optimizer.synchronize()
        if all(g.isfinite().all() for g in grads(model)):
            with optimizer.skip_synchronize():
                optimizer.step()
