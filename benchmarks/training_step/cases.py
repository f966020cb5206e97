"""Cases of benchmarks.training_step: networks, their samples, and plain optimizers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

Tensor = Any  # torch.Tensor: what launches the ranks does without torch


@dataclass(frozen=True)
class Training:
    """A network and how it is trained.

    Attributes:
        network: with the same weights on every rank.
        samples: draws input and target of a rank's step, given a torch.Generator.
        loss: of the network's output and the target.
        optimizer: a class of torch.optim and its arguments, without the parameters.
    """

    network: Any
    samples: Callable[[Any], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: partial[Any]

    @property
    def parameters(self) -> list[Any]:
        """Those that are trained."""
        return [p for p in self.network.parameters() if p.requires_grad]


@dataclass(frozen=True)
class Case:
    """A training, to be built on the ranks.

    Attributes:
        about: for the reader of the figures.
        steps: timed in a turn, which is then a second or some more.
        training: builds it.
    """

    about: str
    steps: int
    training: Callable[[], Training]


def _resnet50(count: int, pixels: int) -> Training:
    import torch

    from resnet.model import resnet50

    def samples(generator: Any) -> tuple[Tensor, Tensor]:
        images = torch.randn(count, 3, pixels, pixels, generator=generator)
        return images, torch.randint(1000, (count,), generator=generator)

    return Training(
        resnet50(),
        samples,
        torch.nn.functional.cross_entropy,
        partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    )


def _edsr(count: int, side: int, blocks: int, features: int, res_scale: float) -> Training:
    import torch

    from edsr.model import edsr

    def samples(generator: Any) -> tuple[Tensor, Tensor]:
        large = 255 * torch.rand(count, 3, 2 * side, 2 * side, generator=generator)
        return torch.nn.functional.avg_pool2d(large, 2), large

    return Training(
        edsr(2, blocks, features, res_scale),
        samples,
        torch.nn.functional.l1_loss,
        partial(torch.optim.Adam, lr=1e-4),
    )


def _small_2000() -> Training:
    import torch

    class AffineLayers(torch.nn.Module):
        """Layers of a factor and a summand for each of 64 features."""

        def __init__(self) -> None:
            super().__init__()
            self.factors = torch.nn.ParameterList(torch.ones(64) for _ in range(1000))
            self.summands = torch.nn.ParameterList(torch.zeros(64) for _ in range(1000))

        def forward(self, x: Tensor) -> Tensor:
            for factor, summand in zip(self.factors, self.summands, strict=True):
                x = torch.addcmul(summand, x, factor)
            return x

    def samples(generator: Any) -> tuple[Tensor, Tensor]:
        x, y = torch.randn(2, 4, 64, generator=generator)
        return x, y

    return Training(
        AffineLayers(), samples, torch.nn.functional.mse_loss, partial(torch.optim.SGD, lr=1e-3)
    )


CASES = {
    "resnet50": Case(
        "ResNet-50, 4 images of 64 pixels, SGD with momentum", 6, partial(_resnet50, 4, 64)
    ),
    "resnet50_224": Case(
        "ResNet-50, 8 images of 224 pixels, SGD with momentum", 1, partial(_resnet50, 8, 224)
    ),
    "edsr_demo": Case(
        "EDSR x2 of 4 blocks of 32 features, 4 patches of 24 pixels, Adam",
        30,
        partial(_edsr, 4, 24, 4, 32, 1.0),
    ),
    "edsr_baseline": Case(
        "EDSR x2 of 16 blocks of 64 features, 4 patches of 48 pixels, Adam",
        2,
        partial(_edsr, 4, 48, 16, 64, 1.0),
    ),
    "edsr_full": Case(
        "EDSR x2 of 32 blocks of 256 features, 1 patch of 8 pixels, Adam",
        4,
        partial(_edsr, 1, 8, 32, 256, 0.1),
    ),
    "small_2000": Case("2,000 parameters of 64 elements, 4 vectors, SGD", 30, _small_2000),
}
