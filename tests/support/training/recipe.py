"""What recipes of trainings share: the door that they go through, and their data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

STEPS = 7  # buckets are laid out again meanwhile


@dataclass
class Door:
    """Horovod, or hvd_ext in its place.

    Attributes:
        hvd: the module.
        options: of DistributedOptimizer, for all optimizers.
        name: of the training; before the names of parameters.
    """

    hvd: ModuleType
    options: dict[str, Any]
    name: str = ""

    @property
    def rank(self) -> int:
        return int(self.hvd.rank())

    def wrap(self, optimizer: torch.optim.Optimizer, *modules: nn.Module, **options: Any) -> Any:
        """Broadcast weights, wrap the optimizer, and broadcast its state."""
        named = []
        for number, module in enumerate(modules):
            self.hvd.broadcast_parameters(module.state_dict(), root_rank=0)
            named += list(module.named_parameters(f"{self.name}.{number}"))
        wrapped = self.hvd.DistributedOptimizer(optimizer, named, **options, **self.options)
        if not isinstance(optimizer, torch.optim.LBFGS):
            self.hvd.broadcast_optimizer_state(wrapped, root_rank=0)
        return wrapped

    def seed(self, step: int) -> None:
        """Random numbers of a step, others on each rank."""
        torch.manual_seed(1000 * step + self.rank)

    def batch(self, step: int, *shape: int, classes: int = 4) -> tuple[Tensor, Tensor]:
        """Samples and labels of this rank."""
        self.seed(step)
        return torch.randn(shape), torch.randint(classes, shape[:1])


def recipe(function: Callable[[Door], Any]) -> Callable[[Door], Any]:
    """Mark one."""
    function.is_recipe = True  # type: ignore[attr-defined]
    return function


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with tanh between them."""
    layers: list[nn.Module] = []
    for one, other in pairwise(widths):
        layers += [nn.Linear(one, other), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def cnn(classes: int = 4) -> nn.Sequential:
    """Convolutions with batch norms."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes)),
    )


def clip_and_step(optimizer: Any, parameters: Iterable[Tensor], most: float = 0.5) -> None:
    """As Horovod's documentation has it."""
    optimizer.synchronize()
    nn.utils.clip_grad_norm_(parameters, most)
    with optimizer.skip_synchronize():
        optimizer.step()
