"""Whole scripts in small: GANs, penalties, teachers, layers with state of their own."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

from tests.support.optimizer.sharding_patterns import STEPS, Run, mlp, pattern


def _generator() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 31), nn.ReLU(), nn.Linear(31, 7))


def _gan(run: Run, kind, **options):
    generator, critic = run.model(_generator), run.model()
    return (
        generator,
        critic,
        *(run.wrap(kind(m.parameters(), lr=0.01, **options)) for m in (generator, critic)),
    )


@pattern
def gan_whose_critic_is_frozen_for_the_generator(run: Run) -> None:
    generator, critic, of_generator, of_critic = _gan(run, torch.optim.Adam, betas=(0.5, 0.99))
    for _ in range(STEPS):
        critic.requires_grad_(True)
        of_critic.zero_grad()
        fake = generator(torch.randn(4, 5))
        loss = critic(fake.detach()).mean() - critic(torch.randn(4, 7)).mean()
        loss.backward()
        of_critic.step()
        critic.requires_grad_(False)
        of_generator.zero_grad()
        run.note(loss, fake)
        (-critic(fake).mean()).backward()
        of_generator.step()


@pattern
def gan_of_several_passes(run: Run) -> None:
    generator, critic = run.model(_generator), run.model()
    of_generator = run.wrap(torch.optim.RMSprop(generator.parameters()))
    of_critic = run.wrap(torch.optim.RMSprop(critic.parameters()), backward_passes_per_step=2)
    for _ in range(STEPS):
        of_critic.zero_grad()
        critic(torch.randn(4, 7)).mean().backward()
        (-critic(generator(torch.randn(4, 5)).detach()).mean()).backward()
        of_critic.step()
        for p in critic.parameters():  # WGAN (Arjovsky et al., 2017)
            p.data.clamp_(-0.01, 0.01)
        of_generator.zero_grad()
        loss = -critic(generator(torch.randn(4, 5))).mean()
        found = torch.autograd.grad(loss, list(generator.parameters()))
        for p, grad in zip(generator.parameters(), found, strict=True):
            p.grad = grad
        of_generator.step()


@pattern
def gradient_penalty(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(4, 7, requires_grad=True)
        (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        loss = model(x).mean() + 10 * (grad.norm(dim=1) - 1).square().mean()
        run.note(loss)
        loss.backward()
        optimizer.step()


@pattern
def penalty_of_weights(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        optimizer.zero_grad()
        (run.loss(model) + sum(p.abs().sum() for p in model.parameters())).backward()
        optimizer.step()


@pattern
def teacher_that_follows(run: Run) -> None:
    model, optimizer = run.setup()
    teacher = copy.deepcopy(model).requires_grad_(False)
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(4, 7)
        loss = F.mse_loss(model(x), teacher(x + 0.1 * torch.randn(4, 7)))
        loss.backward()
        optimizer.step()
        run.note(loss)
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), model.parameters(), strict=True):
                old.mul_(0.9).add_(new, alpha=0.1)


@pattern
def target_network_copied_now_and_then(run: Run) -> None:
    model, optimizer = run.setup()
    target = copy.deepcopy(model)
    for step in range(8):
        optimizer.zero_grad()
        x = torch.randn(4, 7)
        with torch.no_grad():
            wanted = target(x) * 0.9 + 1
        F.smooth_l1_loss(model(x), wanted).backward()
        optimizer.step()
        if step % 3 == 0:
            target.load_state_dict(model.state_dict())


def _layers(name: str, make, shape: tuple[int, ...]) -> None:
    def layers(run: Run) -> None:
        model = run.model(make)
        optimizer = run.wrap(torch.optim.AdamW(model.parameters(), lr=0.01))
        for _ in range(STEPS):
            optimizer.zero_grad()
            out = model(torch.randn(shape))
            loss = (out[0] if isinstance(out, tuple) else out).square().mean()
            loss.backward()
            optimizer.step()
            run.note(loss)

    layers.__name__ = f"layers_{name}"
    pattern(layers)


for _name, _make, _shape in (
    (
        "batch_norm",
        lambda: nn.Sequential(nn.Linear(7, 31), nn.BatchNorm1d(31), mlp_from(31)),
        (4, 7),
    ),
    ("dropout", lambda: nn.Sequential(mlp(), nn.Dropout(0.5), nn.Linear(3, 3)), (4, 7)),
    ("recurrent", lambda: nn.LSTM(7, 11, 2), (5, 4, 7)),
    ("attention", lambda: nn.TransformerEncoderLayer(8, 2, 13, batch_first=True), (4, 5, 8)),
    ("weight_norm", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(7, 31)), (4, 7)),
    ("spectral_norm", lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(7, 31)), (4, 7)),
    ("group_norm", lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6)), (2, 3, 8, 8)),
):
    _layers(_name, _make, _shape)


def mlp_from(width: int) -> nn.Module:
    return nn.Sequential(nn.Tanh(), nn.Linear(width, 3))


@pattern
def embedding(run: Run) -> None:
    model = run.model(lambda: nn.Sequential(nn.Embedding(50, 7, padding_idx=0), mlp()))
    optimizer = run.wrap(torch.optim.Adam(model.parameters()))
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randint(50, (4,))).square().mean().backward()
        optimizer.step()


@pattern
def activations_computed_again(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(4, 7, requires_grad=True)
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).mean().backward()
        optimizer.step()


@pattern
def autocast(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(4, 7)).float().square().mean()
        loss.backward()
        optimizer.step()


@pattern
def graph_kept_for_two_losses(run: Run) -> None:
    model = run.model()
    optimizer = run.wrap(torch.optim.SGD(model.parameters(), lr=0.1), backward_passes_per_step=2)
    for _ in range(STEPS):
        optimizer.zero_grad()
        out = model(torch.randn(4, 7))
        out.square().mean().backward(retain_graph=True)
        out.abs().mean().backward()
        optimizer.step()


@pattern
def truncated_through_time(run: Run) -> None:
    model = run.model(lambda: nn.GRUCell(7, 7))
    optimizer = run.wrap(torch.optim.SGD(model.parameters(), lr=0.1))
    hidden = torch.zeros(4, 7)
    for _ in range(STEPS):
        optimizer.zero_grad()
        hidden = hidden.detach()
        for _ in range(3):
            hidden = model(torch.randn(4, 7), hidden)
        hidden.square().mean().backward()
        optimizer.step()


@pattern
def evaluated_in_between(run: Run) -> None:
    model, optimizer = run.setup()
    for _ in range(STEPS):
        run.step(model, optimizer)
        model.eval()
        with torch.inference_mode():
            run.note(model(torch.ones(2, 7)))
        model.train()


@pattern
def trained_in_two_phases(run: Run) -> None:
    model = run.model()
    optimizer = run.wrap(torch.optim.Adam(model.parameters()))
    for _ in range(STEPS):
        run.step(model, optimizer)
    run.drop(optimizer)
    del optimizer
    again = run.wrap(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(STEPS):
        run.step(model, again)
