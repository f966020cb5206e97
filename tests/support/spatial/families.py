"""Families of models that users split, by hand from their public configurations, narrow.

Wan 2.1's and CogVideoX's video autoencoders as diffusers writes them, 3-D U-Nets, and
torchvision's ConvNeXt. What the middle blocks add to them is left to the option `attention`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.support.spatial.video import Attention, RMSNorm


class CausalConv3d(nn.Conv3d):
    """A convolution that sees earlier frames: zeros, the first one repeated, or a cache."""

    def __init__(self, inside: int, outside: int, kernel: int | tuple[int, ...], mode: str) -> None:
        kernel = (kernel,) * 3 if isinstance(kernel, int) else kernel
        super().__init__(inside, outside, kernel, padding=(0, kernel[1] // 2, kernel[2] // 2))
        self.before, self.mode = kernel[0] - 1, mode

    def forward(self, x: Any) -> Any:
        if self.mode == "first" and self.before:
            x = torch.cat([x[:, :, :1]] * self.before + [x], dim=2)
        elif self.before:
            mode = {"zeros": "constant", "replicate": "replicate"}[self.mode]
            x = F.pad(x, (0, 0, 0, 0, self.before, 0), mode=mode)
        return super().forward(x)


class WanBlock(nn.Module):
    """Two causal convolutions, each after an RMS norm over channels, and a shortcut."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = RMSNorm(inside), CausalConv3d(inside, outside, 3, "zeros")
        self.norm2, self.conv2 = RMSNorm(outside), CausalConv3d(outside, outside, 3, "zeros")
        self.shortcut = (
            CausalConv3d(inside, outside, 1, "zeros") if inside != outside else nn.Identity()
        )

    def forward(self, x: Any) -> Any:
        y = self.conv1(F.silu(self.norm1(x)))
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class WanResample(nn.Module):
    """Half or twice the height and width, frame by frame, and the frames, in time."""

    def __init__(self, channels: int, *, up: bool, frames: bool) -> None:
        super().__init__()
        self.up, self.frames = up, frames
        if up:
            self.resample = nn.Sequential(
                nn.Upsample(scale_factor=(2.0, 2.0), mode="nearest-exact"),
                nn.Conv2d(channels, channels // 2, 3, padding=1),
            )
        else:
            self.resample = nn.Sequential(
                nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(channels, channels, 3, stride=2)
            )
        if frames and up:
            self.time: nn.Module = CausalConv3d(channels, 2 * channels, (3, 1, 1), "zeros")
        elif frames:
            self.time = nn.Conv3d(channels, channels, (3, 1, 1), stride=(2, 1, 1))

    def forward(self, x: Any) -> Any:
        n, c, t, h, w = x.shape
        if self.up and self.frames:
            x = self.time(x).reshape(n, 2, c, t, h, w)
            x = torch.stack((x[:, 0], x[:, 1]), 3).reshape(n, c, 2 * t, h, w)
        x = self.resample(x.permute(0, 2, 1, 3, 4).reshape(-1, c, h, w))
        x = x.view(n, -1, *x.shape[1:]).permute(0, 2, 1, 3, 4)
        if self.frames and not self.up:
            # The first frame is encoded by itself.
            x = torch.cat([x[:, :, :1], self.time(x)], dim=2)
        return x


class Wan(nn.Module):
    """Encoder and decoder of Wan 2.1, of which dims are 96 x (1, 2, 4, 4) and 16 latent."""

    def __init__(self, *, attention: bool = False) -> None:
        super().__init__()
        middle = [Attention(8)] if attention else []
        self.encoder = nn.Sequential(
            CausalConv3d(3, 4, 3, "zeros"),
            WanBlock(4, 4),
            WanResample(4, up=False, frames=False),
            WanBlock(4, 8),
            WanResample(8, up=False, frames=True),
            *middle,
            WanBlock(8, 8),
            RMSNorm(8),
            nn.SiLU(),
            CausalConv3d(8, 4, 3, "zeros"),
            CausalConv3d(4, 4, 1, "zeros"),
        )
        self.decoder = nn.Sequential(
            CausalConv3d(2, 2, 1, "zeros"),
            CausalConv3d(2, 8, 3, "zeros"),
            WanBlock(8, 8),
            *middle,
            WanBlock(8, 8),
            WanResample(8, up=True, frames=True),
            WanBlock(4, 8),
            WanResample(8, up=True, frames=False),
            WanBlock(4, 4),
            RMSNorm(4),
            nn.SiLU(),
            CausalConv3d(4, 3, 3, "zeros"),
        )

    def forward(self, x: Any) -> Any:
        mean, spread = self.encoder(x).chunk(2, dim=1)
        return self.decoder(mean + 0.1 * spread.clamp(-3, 3).exp()).clamp(-1e3, 1e3)


class SpatialNorm(nn.Module):
    """CogVideoX's group norm, scaled and shifted by the latent, which is resized to it."""

    def __init__(self, channels: int, latent: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, channels, eps=1e-6)
        self.scale = CausalConv3d(latent, channels, 1, "first")
        self.shift = CausalConv3d(latent, channels, 1, "first")

    def forward(self, x: Any, z: Any) -> Any:
        if x.shape[2] > 1 and x.shape[2] % 2:
            size = x.shape[2:]
            first = F.interpolate(z[:, :, :1], size=(1, *size[1:]))
            z = torch.cat([first, F.interpolate(z[:, :, 1:], size=(size[0] - 1, *size[1:]))], dim=2)
        else:
            z = F.interpolate(z, size=x.shape[2:])
        return self.norm(x) * self.scale(z) + self.shift(z)


class CogBlock(nn.Module):
    """Two causal convolutions, each after a group norm."""

    def __init__(self, inside: int, outside: int, mode: str, latent: int | None = None) -> None:
        super().__init__()

        def norm(channels: int) -> nn.Module:
            return (
                nn.GroupNorm(2, channels, 1e-6) if latent is None else SpatialNorm(channels, latent)
            )

        self.latent = latent is not None
        self.norm1, self.conv1 = norm(inside), CausalConv3d(inside, outside, 3, mode)
        self.norm2, self.conv2 = norm(outside), CausalConv3d(outside, outside, 3, mode)
        self.shortcut = nn.Conv3d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: Any, z: Any = None) -> Any:
        given = (z,) if self.latent else ()
        y = self.conv1(F.silu(self.norm1(x, *given)))
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(y, *given)))


def halve(x: Any, conv: nn.Module, *, as_published: bool) -> Any:
    """CogVideoX's downsampling: pairs of frames averaged, then a strided convolution of each."""
    n, c, t, h, w = x.shape
    if as_published:
        # Merges rows and columns into the batch.
        y = x.permute(0, 3, 4, 1, 2).reshape(n * h * w, c, t)
        first, others = y[..., :1], F.avg_pool1d(y[..., 1:], 2, 2)
        y = torch.cat([first, others], dim=-1)
        x = y.reshape(n, h, w, c, y.shape[-1]).permute(0, 3, 4, 1, 2)
    else:
        others = F.avg_pool3d(x[:, :, 1:], (2, 1, 1), (2, 1, 1))
        x = torch.cat([x[:, :, :1], others], dim=2)
    x = F.pad(x, (0, 1, 0, 1))
    n, c, t, h, w = x.shape
    x = conv(x.permute(0, 2, 1, 3, 4).reshape(n * t, c, h, w))
    return x.reshape(n, t, *x.shape[1:]).permute(0, 2, 1, 3, 4)


def twice(x: Any, conv: nn.Module) -> Any:
    """CogVideoX's upsampling: all but the first frame twice."""
    first = F.interpolate(x[:, :, 0], scale_factor=2.0)[:, :, None]
    x = torch.cat([first, F.interpolate(x[:, :, 1:], scale_factor=2.0)], dim=2)
    n, c, t, h, w = x.shape
    x = conv(x.permute(0, 2, 1, 3, 4).reshape(n * t, c, h, w))
    return x.reshape(n, t, *x.shape[1:]).permute(0, 2, 1, 3, 4)


class CogVideoX(nn.Module):
    """Encoder and decoder, of which widths are (128, 256, 256, 512) and 16 latent."""

    def __init__(self, mode: str = "first", *, as_published: bool = False) -> None:
        super().__init__()
        self.as_published = as_published
        self.first, self.down1 = CausalConv3d(3, 4, 3, mode), CogBlock(4, 4, mode)
        self.down, self.down2 = nn.Conv2d(4, 4, 3, stride=2), CogBlock(4, 6, mode)
        self.norm, self.latent = nn.GroupNorm(2, 6, 1e-6), CausalConv3d(6, 4, 3, mode)
        self.back, self.up1 = CausalConv3d(2, 6, 3, mode), CogBlock(6, 6, mode, 2)
        self.up, self.up2 = nn.Conv2d(6, 6, 3, padding=1), CogBlock(6, 4, mode, 2)
        self.last_norm, self.last = SpatialNorm(4, 2), CausalConv3d(4, 3, 3, mode)

    def forward(self, x: Any) -> Any:
        x = halve(self.down1(self.first(x)), self.down, as_published=self.as_published)
        mean, spread = self.latent(F.silu(self.norm(self.down2(x)))).chunk(2, dim=1)
        z = mean + 0.1 * spread.clamp(-3, 3).exp()
        x = self.up2(twice(self.up1(self.back(z), z), self.up), z)
        return self.last(F.silu(self.last_norm(x, z)))


class Causal(nn.Module):
    """Whose convolutions are all 3-D, so that time may be split too."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(CausalConv3d(3, 4, 3, mode), nn.GroupNorm(2, 4), nn.SiLU()),
            nn.Conv3d(4, 6, 3, stride=2, padding=1),
            *(CausalConv3d(6, 6, 3, mode), nn.GroupNorm(2, 6), nn.SiLU()),
            *(nn.Upsample(scale_factor=2.0, mode="nearest"), CausalConv3d(6, 3, 3, mode)),
        )

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class UNet3d(nn.Module):
    """Two levels and a middle, as nnU-Net's and MONAI's: skips by concatenation."""

    def __init__(self, norm: Callable[[int], nn.Module], *, transposed: bool) -> None:
        super().__init__()

        def block(inside: int, outside: int, stride: int = 1) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv3d(inside, outside, 3, stride, 1),
                norm(outside),
                nn.LeakyReLU(0.01, inplace=True),
                nn.Conv3d(outside, outside, 3, padding=1),
                norm(outside),
                nn.LeakyReLU(0.01, inplace=True),
            )

        def up(inside: int, outside: int) -> nn.Module:
            if transposed:
                return nn.ConvTranspose3d(inside, outside, 2, 2)
            return nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv3d(inside, outside, 1))

        self.down = nn.ModuleList([block(2, 4), block(4, 6, 2), block(6, 8, 2)])
        self.up = nn.ModuleList([up(8, 6), up(6, 4)])
        self.join = nn.ModuleList([block(12, 6), block(8, 4)])
        self.labels = nn.Conv3d(4, 3, 1)

    def forward(self, x: Any) -> Any:
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
        for up, join, skip in zip(self.up, self.join, skips[-2::-1], strict=True):
            x = join(torch.cat([skip, up(x)], dim=1))
        return self.labels(x)


class Permute(nn.Module):
    """torchvision's."""

    def __init__(self, dims: list[int]) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Any) -> Any:
        return torch.permute(x, self.dims)


class LayerNorm2d(nn.LayerNorm):
    """Over channels, by two permutes."""

    def forward(self, x: Any) -> Any:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class StochasticDepth(nn.Module):
    """Leaves a block out for some samples."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Any) -> Any:
        if not self.training or not self.p:
            return x
        kept = 1.0 - self.p
        noise = torch.empty((x.shape[0], 1, 1, 1), dtype=x.dtype, device=x.device)
        return x * noise.bernoulli_(kept).div_(kept)


class ConvNeXtBlock(nn.Module):
    """Depthwise 7 x 7, a norm and two linear layers over channels, a scale of each channel."""

    def __init__(self, channels: int, p: float) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(channels, channels, 7, padding=3, groups=channels),
            Permute([0, 2, 3, 1]),
            nn.LayerNorm(channels, eps=1e-6),
            nn.Linear(channels, 4 * channels),
            nn.GELU(),
            nn.Linear(4 * channels, channels),
            Permute([0, 3, 1, 2]),
        )
        # Published with 1e-6, beside which the block's errors could not be seen.
        self.layer_scale = nn.Parameter(torch.rand(channels, 1, 1))
        self.stochastic_depth = StochasticDepth(p)

    def forward(self, x: Any) -> Any:
        return self.stochastic_depth(self.layer_scale * self.block(x)) + x


class ConvNeXt(nn.Module):
    """Of which widths are (96, 192, 384, 768)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 4, 4, 4), LayerNorm2d(4, eps=1e-6)),
            nn.Sequential(ConvNeXtBlock(4, 0.0), ConvNeXtBlock(4, 0.3)),
            nn.Sequential(LayerNorm2d(4, eps=1e-6), nn.Conv2d(4, 8, 2, 2)),
            nn.Sequential(ConvNeXtBlock(8, 0.5)),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(LayerNorm2d(8, eps=1e-6), nn.Flatten(1), nn.Linear(8, 5))

    def forward(self, x: Any) -> Any:
        return self.classifier(self.avgpool(self.features(x)))


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(2, channels)


def instance_norm(channels: int) -> nn.Module:
    return nn.InstanceNorm3d(channels, affine=True)


# Those whose first split dim may be time or depth.
SOLID = ("causal, zeros", "causal, replicate", "3-D U-Net, transposed", "3-D U-Net, nearest")
# A model and an input's shape whose extents no number of ranks divides at every level.
Family = tuple[Callable[[], nn.Module], tuple[int, ...]]
FAMILIES: dict[str, Family] = {
    "Wan": (Wan, (1, 3, 5, 19, 22)),
    "CogVideoX": (CogVideoX, (1, 3, 5, 18, 22)),
    "CogVideoX, replicate": (lambda: CogVideoX("replicate"), (1, 3, 5, 18, 22)),
    "causal, zeros": (lambda: Causal("zeros"), (1, 3, 9, 11, 10)),
    "causal, replicate": (lambda: Causal("replicate"), (1, 3, 9, 11, 10)),
    "3-D U-Net, transposed": (lambda: UNet3d(instance_norm, transposed=True), (2, 2, 12, 20, 28)),
    "3-D U-Net, nearest": (lambda: UNet3d(group_norm, transposed=False), (2, 2, 12, 20, 28)),
    "ConvNeXt": (ConvNeXt, (2, 3, 67, 75)),
}
