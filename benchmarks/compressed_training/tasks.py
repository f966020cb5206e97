"""Models of benchmarks.compressed_training: two small ones that learn in some hundred steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

_PATCH, _BATCH, _IMAGES = 24, 4, 16
_SIDE, _DIGITS_BATCH = 16, 8


@dataclass(frozen=True)
class Task:
    """A model at its first step.

    Attributes:
        model: a torch.nn.Module; all that requires a gradient is learnt.
        optimizer: of one rank; to be wrapped.
        loss: of this rank's next batch.
    """

    model: Any
    optimizer: Any
    loss: Callable[[], Any]


@dataclass(frozen=True)
class Kind:
    """A kind of task.

    Attributes:
        about: what is learnt, and how.
        make: takes the seed of weights and samples, and the rank whose samples they are.
    """

    about: str
    make: Callable[[int, int], Task]


def _edsr(seed: int, rank: int) -> Task:
    import torch

    from edsr.data import synthetic_image
    from edsr.model import edsr

    torch.manual_seed(seed)
    model = edsr(2, blocks=4, features=32)
    images = [synthetic_image(0, index, 4 * _PATCH) for index in range(_IMAGES)]
    rng = np.random.default_rng([seed, rank])

    def loss() -> Any:
        high = torch.stack([_cut(images[rng.integers(_IMAGES)], rng) for _ in range(_BATCH)])
        low = torch.nn.functional.avg_pool2d(high, 2)
        return torch.nn.functional.l1_loss(model(low), high)

    learnt = [p for p in model.parameters() if p.requires_grad]
    return Task(model, torch.optim.Adam(learnt, lr=1e-3), loss)


def _cut(image: Any, rng: np.random.Generator) -> Any:
    import torch

    side = 2 * _PATCH
    top, left = rng.integers(0, np.array(image.shape[:2]) - side + 1)
    patch = np.ascontiguousarray(image[top : top + side, left : left + side].transpose(2, 0, 1))
    return torch.from_numpy(patch).float()


def _resnet(seed: int, rank: int) -> Task:
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    from resnet.model import resnet18

    torch.manual_seed(seed)
    whole = resnet18(10)
    stem = nn.Sequential(whole.conv1, whole.bn1, nn.ReLU(inplace=True))
    stages = nn.Sequential(whole.get_submodule("layer1"), whole.get_submodule("layer2"))
    model = nn.Sequential(stem, stages, whole.avgpool, nn.Flatten(), nn.Linear(128, 10))
    digits = load_digits()
    enlarged = np.kron(digits.images / 8 - 1, np.ones((_SIDE // 8, _SIDE // 8)))
    images = torch.from_numpy(enlarged).float()[:, None].expand(-1, 3, -1, -1)
    labels = torch.from_numpy(digits.target)
    rng = np.random.default_rng([seed, rank])

    def loss() -> Any:
        chosen = torch.from_numpy(rng.integers(len(labels), size=_DIGITS_BATCH))
        return nn.functional.cross_entropy(model(images[chosen]), labels[chosen])

    return Task(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), loss)


KINDS = {
    "edsr": Kind("EDSR x2 (4 blocks of 32, Adam) on procedural pictures, L1 loss", _edsr),
    "resnet": Kind(
        "the first half of ResNet-18 (momentum SGD) on handwritten digits of 16 pixels, "
        "cross-entropy",
        _resnet,
    ),
}
