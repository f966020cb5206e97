"""The two networks that faults are injected into, and their samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edsr.model import edsr


class _Small(nn.Module):
    """Batch norm and dropout; its layers are not defined in the order of their computation."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(32, 4)
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.hidden = nn.Linear(6 * 64, 32)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.relu(self.norm(self.conv(x)))
        return self.out(nn.functional.relu(self.hidden(self.drop(x.flatten(1)))))


@dataclass(frozen=True)
class Net:
    """A network and how it is trained.

    Attributes:
        build: makes the network.
        samples: the shapes of a rank's inputs and targets of a step.
        largest: of inputs and targets, which are at least 0.
        loss: of output and target.
        rate: Adam's.
    """

    build: Callable[[], nn.Module]
    samples: tuple[tuple[int, ...], tuple[int, ...]]
    largest: float
    loss: Callable[[Tensor, Tensor], Tensor]
    rate: float

    def batch(self, seed: int, step: int, number: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a step for a rank, or for a slot."""
        generator = torch.Generator().manual_seed(100_000 * seed + 100 * step + number)
        x, y = (self.largest * torch.rand(shape, generator=generator) for shape in self.samples)
        return x, y


NETS = {
    "small": Net(_Small, ((6, 3, 8, 8), (6, 4)), 1.0, nn.functional.mse_loss, 1e-2),
    "edsr": Net(
        lambda: edsr(2, 2, 8, 1.0),
        ((4, 3, 8, 8), (4, 3, 16, 16)),
        255.0,
        nn.functional.l1_loss,
        1e-4,
    ),
}
