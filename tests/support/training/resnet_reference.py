"""ResNet as He et al., 2016, table 1, and torchvision's keys say it: functions of a state_dict."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Blocks of each stage, the width of its output over that of its 3x3 convolutions, and the
# kernels of a block; the first of a stage but the first one has stride 2 in a 3x3.
NETWORKS = {
    "resnet18": ((2, 2, 2, 2), 1, (3, 3)),
    "resnet50": ((3, 4, 6, 3), 4, (1, 3, 1)),
}


def random_weights(name: str, classes: int) -> dict[str, Tensor]:
    """A state_dict of torchvision's keys and shapes, whose every number matters."""
    stages, expansion, kernels = NETWORKS[name]
    random = torch.Generator().manual_seed(3)
    weights: dict[str, Tensor] = {}

    def conv(key: str, channels: int, outputs: int, kernel: int) -> None:
        spread = (channels * kernel**2) ** -0.5
        shape = (outputs, channels, kernel, kernel)
        weights[f"{key}.weight"] = spread * torch.randn(shape, generator=random)

    def norm(key: str, channels: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            weights[f"{key}.{part}"] = torch.rand(channels, generator=random) + 0.5
        weights[f"{key}.num_batches_tracked"] = torch.tensor(5)

    conv("conv1", 3, 64, 7)
    norm("bn1", 64)
    channels = 64
    for stage, blocks in enumerate(stages, start=1):
        width = 64 * 2 ** (stage - 1)
        for block in range(blocks):
            key, inputs = f"layer{stage}.{block}", channels
            for number, kernel in enumerate(kernels, start=1):
                outputs = width * expansion if number == len(kernels) else width
                conv(f"{key}.conv{number}", inputs, outputs, kernel)
                norm(f"{key}.bn{number}", outputs)
                inputs = outputs
            if block == 0 and channels != outputs:
                conv(f"{key}.downsample.0", channels, outputs, 1)
                norm(f"{key}.downsample.1", outputs)
            channels = outputs
    weights["fc.weight"] = torch.randn(classes, channels, generator=random) / channels**0.5
    weights["fc.bias"] = torch.randn(classes, generator=random)
    return weights


def logits(weights: dict[str, Tensor], images: Tensor) -> Tensor:
    """(N, 3, H, W) -> (N, classes), of a trained network."""

    def conv(x: Tensor, key: str, stride: int = 1) -> Tensor:
        kernel = weights[f"{key}.weight"]
        return F.conv2d(x, kernel, stride=stride, padding=kernel.shape[2] // 2)

    def norm(x: Tensor, key: str) -> Tensor:
        parts = ("running_mean", "running_var", "weight", "bias")
        mean, var, gamma, beta = (weights[f"{key}.{part}"].view(1, -1, 1, 1) for part in parts)
        return (x - mean) / torch.sqrt(var + 1e-5) * gamma + beta

    x = F.relu(norm(conv(images, "conv1", 2), "bn1"))
    x = F.max_pool2d(x, 3, stride=2, padding=1)
    for stage in range(1, 5):
        block = 0
        while f"layer{stage}.{block}.conv1.weight" in weights:
            key, shortcut, strided = f"layer{stage}.{block}", x, stage > 1 and block == 0
            number = 1
            while f"{key}.conv{number}.weight" in weights:
                three = weights[f"{key}.conv{number}.weight"].shape[2] == 3
                stride = 2 if strided and three else 1
                strided = strided and stride == 1
                x = norm(
                    conv(x if number == 1 else F.relu(x), f"{key}.conv{number}", stride),
                    f"{key}.bn{number}",
                )
                number += 1
            if f"{key}.downsample.0.weight" in weights:
                stride = 2 if stage > 1 else 1
                shortcut = norm(
                    conv(shortcut, f"{key}.downsample.0", stride), f"{key}.downsample.1"
                )
            x = F.relu(x + shortcut)
            block += 1
    return x.mean((2, 3)) @ weights["fc.weight"].T + weights["fc.bias"]
