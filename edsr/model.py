"""EDSR (Lim et al., "Enhanced Deep Residual Networks for Single Image Super-Resolution", 2017).

Modules are named so that the state_dict has the keys of the published weights.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hvd_ext.errors import UsageError

SCALES = (2, 3, 4)
KIND = "edsr"

# Mean of the training images of DIV2K, as a share of the range 0..255.
_MEAN_RGB = (0.4488, 0.4371, 0.4040)


@dataclass(frozen=True)
class Architecture:
    """The settings that distinguish EDSR models.

    Attributes:
        scale: 2, 3 or 4.
        blocks: number of residual blocks.
        features: channels within the network.
        res_scale: factor on each residual branch; 0.1 keeps wide networks stable.
    """

    scale: int
    blocks: int = 16
    features: int = 64
    res_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise UsageError(f"scale {self.scale} is not 2, 3 or 4: EDSR has no other")

    def __str__(self) -> str:
        return f"x{self.scale}, {self.blocks} blocks of {self.features}, res_scale {self.res_scale}"


PRESETS = {
    "baseline": {"blocks": 16, "features": 64, "res_scale": 1.0},
    "full": {"blocks": 32, "features": 256, "res_scale": 0.1},
}


class _MeanShift(nn.Conv2d):
    """A frozen 1x1 convolution that adds `sign` times the mean color."""

    def __init__(self, sign: int) -> None:
        super().__init__(3, 3, kernel_size=1)
        with torch.no_grad():
            self.weight.copy_(torch.eye(3).view(3, 3, 1, 1))
        self.bias = nn.Parameter(sign * 255 * torch.tensor(_MEAN_RGB))
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        # bfloat16 has 8 significant bits: colors above 128 would be rounded to whole steps.
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.to(self.weight.dtype))


class _ResidualBlock(nn.Module):
    def __init__(self, features: int, res_scale: float) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv(features, features), nn.ReLU(inplace=True), _conv(features, features)
        )
        self.res_scale = res_scale

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) * self.res_scale


class EDSR(nn.Module):
    """(N, 3, H, W) of range 0..255 -> (N, 3, scale H, scale W) of the same range."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        scale, features = architecture.scale, architecture.features
        blocks = [
            _ResidualBlock(features, architecture.res_scale) for _ in range(architecture.blocks)
        ]
        self.sub_mean = _MeanShift(-1)
        self.head = nn.Sequential(_conv(3, features))
        self.body = nn.Sequential(*blocks, _conv(features, features))
        self.tail = nn.Sequential(_upsampler(scale, features), _conv(features, 3))
        self.add_mean = _MeanShift(1)

    @property
    def reach(self) -> int:
        """Return how far, in input pixels, an output pixel depends on the input.

        One for each 3x3 convolution at the input's resolution (head, two per block,
        end of the body, first of the upsampler), and at most one for all that follow.
        """
        return 2 * self.architecture.blocks + 4

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(self.sub_mean(x))
        return self.add_mean(self.tail(x + self.body(x)))


def edsr(scale: int, blocks: int = 16, features: int = 64, res_scale: float = 1.0) -> EDSR:
    """Build an EDSR; the defaults are the baseline.

    Raises:
        UsageError: `scale` is not 2, 3 or 4.
    """
    return EDSR(Architecture(scale, blocks, features, res_scale))


def read_architecture(checkpoint: dict[str, Any], path: Path) -> Architecture:
    """The architecture that a checkpoint names.

    Raises:
        UsageError: it names none.
    """
    try:
        return Architecture(**checkpoint["arch"])
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path} holds no architecture: pass a file of edsr.train") from error


def write_architecture(architecture: Architecture) -> dict[str, Any]:
    """The plain values that a checkpoint keeps of an architecture."""
    return asdict(architecture)


def _conv(in_channels: int, out_channels: int) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1)


def _upsampler(scale: int, features: int) -> nn.Sequential:
    factors = {2: [2], 3: [3], 4: [2, 2]}[scale]
    layers: list[nn.Module] = []
    for factor in factors:
        layers += [_conv(features, factor**2 * features), nn.PixelShuffle(factor)]
    return nn.Sequential(*layers)
