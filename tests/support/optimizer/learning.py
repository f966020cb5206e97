"""A small model with what matters to an exchange, and what it learns from."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F


class Net(torch.nn.Module):
    """A convolution, a batch norm, and matrices of uneven shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 9, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(9)
        self.hidden = torch.nn.Linear(9, 301)
        self.out = torch.nn.Linear(301, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.out(torch.tanh(self.hidden(y)))


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples (8, 3, 6, 6) and what is to be found for them (8, 4)."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(8, 3, 6, 6, generator=generator)
    return x, x.mean((2, 3)) @ torch.ones(3, 4)


def flat(model: torch.nn.Module) -> np.ndarray:
    """All weights, as one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
