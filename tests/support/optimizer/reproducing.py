"""A small net that is trained in slots, and the same steps by plain torch in one process."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import Tensor, nn

import hvd_ext.torch

SLOTS, STEPS, SEED = 8, 20, 3
CLIP = 0.5


class Net(nn.Module):
    """Batch norm, dropout, a scalar, and a layer that half of the slots leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 7, 3, padding=1).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(7)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.hidden = nn.Linear(7, 301)
        self.spare = nn.Linear(301, 301)
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(301, 5)

    def forward(self, x: Tensor, slot: int) -> Tensor:
        y = torch.relu(self.norm(self.conv(x))).mean((2, 3)) * self.scale
        y = self.drop(torch.tanh(self.hidden(y)))
        return self.out(self.spare(y) if slot % 4 > 1 else y)


def build(dtype: torch.dtype = torch.float32) -> tuple[Net, torch.optim.Adam]:
    torch.manual_seed(7)
    model = Net().to(dtype)
    return model, torch.optim.Adam(model.parameters(), lr=1e-2, amsgrad=True)


def loss_of(model: Net, step: int, slot: int) -> Tensor:
    dtype = model.scale.dtype
    generator = torch.Generator().manual_seed(1000 * step + slot)
    x = torch.randn(4, 3, 6, 6, generator=generator) * 2.0 ** (slot % 5)
    return model(x.to(dtype), slot).float().square().mean()


def train(
    steps: int = STEPS, dtype: torch.dtype = torch.float32, clip: bool = True, **arguments: Any
) -> tuple[Net, Any, list[float]]:
    """The model, its optimizer, and the losses, on all ranks."""
    model, inner = build(dtype)
    optimizer: Any = hvd_ext.torch.DistributedOptimizer(
        inner, model.named_parameters(), reproducible=SLOTS, **arguments
    )
    slots = hvd_ext.torch.Slots(model, SLOTS, seed=SEED)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(slots.backward(step, lambda slot, at=step: loss_of(model, at, slot)).item())
        if clip:
            optimizer.clip_grad_norm_(CLIP)
        optimizer.step()
    return model, optimizer, losses


@functools.cache
def expected(
    steps: int = STEPS, dtype: torch.dtype = torch.float32, clip: bool = True
) -> tuple[Net, torch.optim.Adam, list[float]]:
    """The same in this process alone, without anything of hvd_ext but the seeds."""
    torch.use_deterministic_algorithms(True)
    model, optimizer = build(dtype)
    averages = [model.norm.running_mean.clone(), model.norm.running_var.clone()]
    model.norm.momentum = 1.0
    losses = []
    for step in range(steps):
        grads: list[list[Tensor]] = []
        of_slots = []
        for slot in range(SLOTS):
            optimizer.zero_grad()
            torch.manual_seed(hvd_ext.torch.slot_seed(SEED, step, slot))
            loss = loss_of(model, step, slot)
            loss.backward()
            of_slots.append(loss.detach())
            wide = torch.promote_types(dtype, torch.float32)
            zeros = [torch.zeros_like(p, dtype=wide) for p in model.parameters()]
            pairs = zip(model.parameters(), zeros, strict=True)
            grads.append([zero if p.grad is None else p.grad.to(wide) for p, zero in pairs])
            for average, new in zip(
                averages, (model.norm.running_mean, model.norm.running_var), strict=True
            ):
                average.copy_(average * 0.9 + new * 0.1)
        for p, *terms in zip(model.parameters(), *grads, strict=True):
            p.grad = (by_halves(torch.stack(terms)) * (1 / SLOTS)).to(dtype)
        losses.append((by_halves(torch.stack(of_slots)) * (1 / SLOTS)).item())
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    model.norm.momentum = 0.1
    model.norm.running_mean.copy_(averages[0])
    model.norm.running_var.copy_(averages[1])
    return model, optimizer, losses


def by_halves(terms: Tensor) -> Tensor:
    """The tree as its definition has it."""
    while len(terms) > 1:
        terms = terms[0::2] + terms[1::2]
    return terms[0]


def differences(ours: tuple[Net, Any, list[float]], theirs: tuple[Net, Any, list[float]]) -> list:
    """The names of what has other bits."""
    found = [f"loss {i}" for i, (a, b) in enumerate(zip(ours[2], theirs[2], strict=True)) if a != b]
    held, wanted = (copy.copy(of[0].state_dict()) for of in (ours, theirs))
    found += [name for name in wanted if not torch.equal(held[name], wanted[name])]
    states = [of[1].state_dict()["state"] for of in (ours, theirs)]
    assert states[0].keys() == states[1].keys()
    for number, state in states[1].items():
        found += [
            f"{key} of {number}"
            for key, value in state.items()
            if not torch.equal(states[0][number][key], value)
        ]
    return found
