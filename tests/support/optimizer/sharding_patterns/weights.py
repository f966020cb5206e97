"""How scripts change weights between steps: average, clamp, replace, restore."""

from __future__ import annotations

import copy
import io

import torch
from torch import nn

from tests.support.optimizer.sharding_patterns import STEPS, Run, pattern


@pattern
def averaged_exponentially(run: Run) -> None:
    model, optimizer = run.setup()
    average = run.model()
    for _ in range(STEPS):
        run.step(model, optimizer)
        with torch.no_grad():
            for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(p, 0.1)


@pattern
def averaged_by_torch_and_swapped_in(run: Run) -> None:
    model, optimizer = run.setup()
    average = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(STEPS):
        run.step(model, optimizer)
        average.update_parameters(model)
    model.load_state_dict(average.module.state_dict())
    run.step(model, optimizer)


@pattern
def copied(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        run.step(model, optimizer)
        held = copy.deepcopy(model)
        run.note(*held.parameters())
    model.load_state_dict(held.state_dict())


@pattern
def clamped_through_data(run: Run) -> None:
    model, optimizer = run.setup(torch.optim.RMSprop)
    for _ in range(STEPS):
        run.step(model, optimizer)
        for p in model.parameters():
            p.data.clamp_(-0.1, 0.1)


@pattern
def replaced_through_data(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        run.step(model, optimizer)
        for p in model.parameters():
            p.data = p.data / p.data.norm()


@pattern
def drawn_back_to_the_best(run: Run) -> None:
    model, optimizer = run.setup()
    for step in range(8):
        run.step(model, optimizer)
        if step == 2:
            best = copy.deepcopy(model.state_dict())
        if step == 6:
            model.load_state_dict(best)


@pattern
def pruned_by_a_mask(run: Run) -> None:
    model, optimizer = run.setup()
    mask = torch.arange(7) % 2
    for _ in range(STEPS):
        run.step(model, optimizer)
        with torch.no_grad():
            model[0].weight.mul_(mask)


@pattern
def initialized_again(run: Run) -> None:
    model, optimizer = run.setup()
    for step in range(STEPS):
        if step == 3:
            with torch.random.fork_rng():
                torch.manual_seed(5)
                model[2].reset_parameters()
        run.step(model, optimizer)


@pattern
def moved_where_they_are(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        run.step(model, optimizer)
        model.to("cpu").float()


@pattern
def saved_and_read(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        run.step(model, optimizer)
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        model.load_state_dict(torch.load(file))


@pattern
def as_one_vector(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        run.step(model, optimizer)
        vector = nn.utils.parameters_to_vector(model.parameters())
        nn.utils.vector_to_parameters(vector * 0.99, model.parameters())


@pattern
def perturbed_for_a_second_gradient(run: Run) -> None:
    model = run.model()
    optimizer = run.wrap(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(STEPS):  # SAM (Foret et al., 2021)
        found = torch.autograd.grad(run.loss(model), list(model.parameters()))
        held = [p.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            for p, grad in zip(model.parameters(), found, strict=True):
                p.add_(grad, alpha=0.05)
        optimizer.zero_grad()
        run.loss(model).backward()
        with torch.no_grad():
            for p, old in zip(model.parameters(), held, strict=True):
                p.copy_(old)
        optimizer.step()


@pattern
def looked_ahead(run: Run) -> None:
    model, optimizer = run.setup()
    slow = [p.detach().clone() for p in model.parameters()]
    for step in range(8):
        run.step(model, optimizer)
        if step % 3 == 2:  # Lookahead (Zhang et al., 2019)
            for mean, p in zip(slow, model.parameters(), strict=True):
                mean.lerp_(p.detach(), 0.5)
                p.data.copy_(mean)


@pattern
def decayed_by_the_script(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        optimizer.zero_grad()
        run.loss(model).backward()
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.99)
        optimizer.step()
