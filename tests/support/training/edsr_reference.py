"""EDSR from its paper, by functions on a dict of tensors named as BasicSR names them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

MEAN = (0.4488, 0.4371, 0.4040)


def random_weights(scale: int, blocks: int, features: int) -> dict[str, Tensor]:
    """Small random weights of every layer."""
    layers = {"conv_first": (features, 3), "conv_after_body": (features, features)}
    for block in range(blocks):
        layers |= {f"body.{block}.conv{n}": (features, features) for n in (1, 2)}
    factors = {2: [4], 3: [9], 4: [4, 4]}[scale]
    layers |= {f"upsample.{2 * n}": (k * features, features) for n, k in enumerate(factors)}
    layers["conv_last"] = (3, features)
    generator = torch.Generator().manual_seed(scale)
    weights = {}
    for name, (out, into) in layers.items():
        weight = torch.randn(out, into, 3, 3, generator=generator)
        weights[f"{name}.weight"] = weight / (3 * into**0.5)
        weights[f"{name}.bias"] = torch.randn(out, generator=generator) / 10
    return weights


def enlarge(weights: Mapping[str, Tensor], image: Tensor, scale: int, res_scale: float) -> Tensor:
    """(N, 3, H, W) of range 0..255 -> (N, 3, scale H, scale W)."""

    def conv(x: Tensor, name: str) -> Tensor:
        return F.conv2d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], padding=1)

    mean = 255 * torch.tensor(MEAN).view(3, 1, 1)
    head = x = conv(image - mean, "conv_first")
    for block in range(sum(name.endswith("conv1.weight") for name in weights)):
        x = x + res_scale * conv(F.relu(conv(x, f"body.{block}.conv1")), f"body.{block}.conv2")
    x = conv(x, "conv_after_body") + head
    for step in range(2 if scale == 4 else 1):
        x = F.pixel_shuffle(conv(x, f"upsample.{2 * step}"), 2 if scale == 4 else scale)
    return conv(x, "conv_last") + mean
