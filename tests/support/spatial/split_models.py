"""Models for one rank, trained as they are and split: 5 steps in fp64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cosmoflow.model import CosmoFlow
from edsr.model import edsr
from hvd_ext import spatial
from mesh.model import Architecture, MeshModel
from resnet.model import resnet50
from tests.support.spatial.families import FAMILIES

STEPS = 5


class UNet(nn.Module):
    """Two levels: strided pooling down, transposed convolution up, skips by concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self._block(3, 6)
        self.pool = nn.MaxPool2d(2)
        self.middle = self._block(6, 8)
        self.up = nn.ConvTranspose2d(8, 6, 3, stride=2, padding=1, output_padding=1)
        self.last = self._block(12, 6)
        self.labels = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.first(x)
        x = self.up(self.middle(self.pool(skip)))
        return self.labels(self.last(torch.cat([x, skip], dim=1)))

    @staticmethod
    def _block(inside: int, outside: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inside, outside, 3, padding=1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
            nn.Conv2d(outside, outside, 3, padding=1),
            nn.LeakyReLU(0.1),
        )


Learner = Callable[[nn.Module], torch.optim.Optimizer]
Case = tuple[Callable[[], nn.Module], Callable[..., Tensor], Any, Any]
mse, cross_entropy = nn.functional.mse_loss, nn.functional.cross_entropy


def mesh() -> nn.Module:
    """Both kernels, both strides and the pixel shuffle of the published one."""
    return MeshModel(Architecture(((6, 8), (8, 10), (10,)), (2, 2, 1)))


def cases(name: str, samples: int) -> Case:
    """A model, its loss, inputs and targets, the same wherever this is called."""
    generator = torch.Generator().manual_seed(3)

    def noise(*shape: int) -> Tensor:
        return torch.rand(samples, *shape, generator=generator, dtype=torch.float64)

    def labels(classes: int, *shape: int) -> Tensor:
        return torch.randint(classes, (samples, *shape), generator=generator)

    made: dict[str, Callable[[], Case]] = {
        "mesh": lambda: (mesh, mse, noise(18, 28, 36), noise(1, 28, 36).round()),
        "unet": lambda: (UNet, cross_entropy, noise(3, 18, 22), labels(4, 18, 22)),
        "edsr": lambda: (
            lambda: edsr(2, blocks=2, features=6),
            nn.functional.l1_loss,
            255 * noise(3, 13, 11),
            255 * noise(3, 26, 22),
        ),
        "cosmoflow": lambda: (
            lambda: CosmoFlow(32, thin=8),
            mse,
            noise(4, 32, 32, 32),
            noise(4),
        ),
        "cosmoflow_full": lambda: (lambda: CosmoFlow(32), mse, noise(4, 32, 32, 32), noise(4)),
        "resnet50": lambda: (
            # Otherwise chaotic before it has learnt anything: rounding grows a thousandfold
            # a step.
            lambda: resnet50(10, zero_init_residual=True),
            cross_entropy,
            noise(3, 64, 64),
            labels(10),
        ),
    }
    if name in FAMILIES:
        make, shape = FAMILIES[name]
        return make, lambda output, _: output.square().mean(), noise(*shape[1:]), noise(1)
    return made[name]()


def build(make: Callable[[], nn.Module], *, dropout: bool) -> nn.Module:
    torch.manual_seed(7)
    model = make().double()
    if not dropout:
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
    return model


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    learnt = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.SGD(learnt, lr=1e-3, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def unsplit(
    name: str, samples: int, groups: int = 1, *, dropout: bool = False, learner: Learner = sgd
) -> Any:
    """Losses and final state of the unsplit model.

    With several groups of samples, gradients are the mean over them, and batch norm is over
    each alone, as with data parallelism.
    """
    make, loss_of, inputs, targets = cases(name, samples)
    models = [build(make, dropout=dropout) for _ in range(groups)]
    optimizers = [learner(model) for model in models]
    losses = []
    for step in range(STEPS):
        shares = []
        for group, model in enumerate(models):
            torch.manual_seed(1000 * group + step)
            mine = slice(group * samples // groups, (group + 1) * samples // groups)
            loss = loss_of(model(inputs[mine]), targets[mine])
            model.zero_grad()
            loss.backward()
            shares.append(loss.item())
        losses.append(sum(shares) / groups)
        for together in zip(*(model.parameters() for model in models), strict=True):
            grads = [p.grad for p in together]
            if grads[0] is not None:
                mean = sum(grads) / groups
                for p in together:
                    p.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
    return losses, models[0].state_dict()


def split(
    comm: Any,
    name: str,
    samples: int,
    grid: tuple[int, int, int],
    model: nn.Module,
    *,
    wrap: Callable[[torch.optim.Optimizer, nn.Module], torch.optim.Optimizer] | None = None,
    learner: Learner = sgd,
    **options: Any,
) -> Any:
    """The same on the ranks of `comm`; `wrap` is to average the gradients over all of them.

    `model` is the one to begin with, built before there are threads that share torch's
    random numbers; `options` are for `convert`.
    """
    _, loss_of, inputs, targets = cases(name, samples)
    process_grid = spatial.ProcessGrid(*grid, comm=comm)
    group, groups = process_grid.sample_group, process_grid.sample_groups
    mine = slice(group * samples // groups, (group + 1) * samples // groups)
    x, y = inputs[mine], targets[mine]
    model = spatial.convert(copy.deepcopy(model), process_grid, **options)
    optimizer = learner(model)
    if wrap:
        optimizer = wrap(optimizer, model)
    if name in ("mesh", "unet", "edsr"):
        y = spatial.scatter(y, process_grid, spatial_dims=2)
    losses = []
    for step in range(STEPS):
        torch.manual_seed(1000 * group + step)
        optimizer.zero_grad()
        loss = loss_of(model(spatial.scatter(x, process_grid)), y)
        loss.backward()
        losses.append(loss.item())
        if not wrap:
            for p in model.parameters():
                if p.grad is not None:
                    p.grad = process_grid.samples.allreduce(
                        process_grid.space.allreduce(p.grad)
                    ) / (process_grid.space.size * groups)
        optimizer.step()
    return losses, model.state_dict()


def worst(mine: Any, expected: Any) -> float:
    """Largest difference of losses, and of weights and statistics, relative to their largest."""
    losses, state = mine
    errors = [abs(a - b) / max(abs(b), 1e-30) for a, b in zip(losses, expected[0], strict=True)]
    assert state.keys() == expected[1].keys()
    for key, tensor in expected[1].items():
        scale = tensor.abs().max().clamp(min=1e-30).double()
        errors.append(((state[key] - tensor).abs().max() / scale).item())
    return max(errors)
