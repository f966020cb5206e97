"""Encoders and decoders of video models as people write them, by hand and narrow.

Causal convolutions over time, frames in the batch, caches of frames, and attention in the middle.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Cache = list[Any]


class CausalConv3d(nn.Conv3d):
    """A convolution that sees earlier frames alone: from a cache, or the first one repeated."""

    def __init__(self, inside: int, outside: int, mode: str, kernel: int = 3) -> None:
        around = kernel // 2
        super().__init__(inside, outside, kernel, padding=(0, around, around))
        self.before, self.mode = kernel - 1, mode

    def forward(self, x: Any, cache: Cache | None = None, at: int = 0) -> Any:
        if cache is not None:
            kept = x[:, :, -self.before :].clone()
            if cache[at] is not None:
                if kept.shape[2] < self.before:
                    kept = torch.cat([cache[at][:, :, -1].unsqueeze(2), kept], dim=2)
                x = torch.cat([cache[at], x], dim=2)
            x = F.pad(x, (0, 0, 0, 0, self.before + 1 - min(x.shape[2], self.before + 1), 0))
            cache[at] = kept
        elif self.mode == "replicate":
            x = F.pad(x, (0, 0, 0, 0, self.before, 0), mode="replicate")
        else:
            x = torch.cat([x[:, :, :1].repeat(1, 1, self.before, 1, 1), x], dim=2)
        return super().forward(x)


class RMSNorm(nn.Module):
    """Over channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.rand(channels, 1, 1, 1))

    def forward(self, x: Any) -> Any:
        return F.normalize(x, dim=1) * x.shape[1] ** 0.5 * self.gamma


class FrameNorm(nn.GroupNorm):
    """Group normalization of each frame by itself."""

    def forward(self, x: Any) -> Any:
        n, c, t, h, w = x.shape
        x = super().forward(x.permute(0, 2, 1, 3, 4).reshape(n * t, c, h, w))
        return x.reshape(n, t, c, h, w).permute(0, 2, 1, 3, 4)


class Attention(nn.Module):
    """Of the cells of each frame."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Any) -> Any:
        n, c, t, h, w = x.shape
        y = self.qkv(x.permute(0, 2, 1, 3, 4).reshape(n * t, c, h, w))
        q, k, v = y.reshape(n * t, 1, 3 * c, h * w).transpose(2, 3).chunk(3, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v).squeeze(1).transpose(1, 2)
        y = self.out(y.reshape(n * t, c, h, w)).view(n, t, c, h, w).permute(0, 2, 1, 3, 4)
        return x + y


class Upsample(nn.Module):
    """Twice the frames, but for the first, and twice the height and width."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Any) -> Any:
        first, others = x.split((1, x.shape[2] - 1), dim=2)
        first = F.interpolate(first.squeeze(2), scale_factor=2.0, mode="nearest").unsqueeze(2)
        if others.shape[2]:
            others = F.interpolate(others, scale_factor=(2.0, 2.0, 2.0), mode="nearest")
            first = torch.cat((first, others), dim=2)
        n, c, t, h, w = first.shape
        y = self.conv(first.permute(0, 2, 1, 3, 4).reshape(n * t, c, h, w))
        return y.view(n, t, c, h, w).permute(0, 2, 1, 3, 4)


class Autoencoder(nn.Module):
    """By the whole video: causal convolutions, norms over video or frames, nearest upsampling."""

    def __init__(self, mode: str, norm: type[nn.GroupNorm]) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            CausalConv3d(3, 4, mode),
            norm(2, 4),
            nn.SiLU(),
            nn.Conv3d(4, 4, 3, stride=(1, 2, 2), padding=1),
            Attention(4),
        )
        self.decoder = nn.Sequential(
            CausalConv3d(4, 4, mode), norm(2, 4), nn.SiLU(), Upsample(4), CausalConv3d(4, 3, mode)
        )

    def forward(self, x: Any) -> Any:
        mean, spread = self.encoder(x).chunk(2, dim=1)
        return self.decoder(torch.cat([mean, spread.clamp(-3, 3).exp()], dim=1))


class Cached(nn.Module):
    """Some frames at a time, with a cache of the last ones of each convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = CausalConv3d(3, 4, "zeros"), RMSNorm(4)
        self.time, self.last = CausalConv3d(4, 8, "zeros"), CausalConv3d(4, 3, "zeros")
        self.up = nn.Sequential(nn.Upsample(scale_factor=(2.0, 2.0), mode="nearest-exact"))
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def chunk(self, x: Any, cache: Cache) -> Any:
        x = F.silu(self.norm(self.first(x, cache, 0)))
        n, c, t, h, w = x.shape
        x = self.time(x, cache, 1).reshape(n, 2, c, t, h, w)
        x = torch.stack((x[:, 0], x[:, 1]), 3).reshape(n, c, 2 * t, h, w)
        # One frame at first: T = 1 merged into the batch.
        x = x[:, :, -1:] if cache[3] is None else x
        cache[3] = True
        t = x.shape[2]
        x = self.conv(self.up(x.permute(0, 2, 1, 3, 4).reshape(n * t, c, h, w)))
        x = x.view(n, t, c, 2 * h, 2 * w).permute(0, 2, 1, 3, 4)
        return self.last(x, cache, 2)

    def forward(self, x: Any) -> Any:
        cache: Cache = [None] * 4
        frames = range(1, x.shape[2], 2)
        parts = [self.chunk(x[:, :, :1], cache)]
        parts += [self.chunk(x[:, :, at : at + 2], cache) for at in frames]
        return torch.cat(parts, dim=2)


class Patched(nn.Module):
    """Blocks of frames and cells as channels, by views; pixel norm; and back."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = CausalConv3d(3 * 2 * 4, 16, "repeat")
        self.out = CausalConv3d(16, 2 * 3 * 2 * 4, "repeat")

    def forward(self, x: Any) -> Any:
        n, c, t, h, w = x.shape
        x = x.reshape(n, c, t // 2, 2, h // 2, 2, w // 2, 2)
        x = x.permute(0, 1, 3, 7, 5, 2, 4, 6).flatten(1, 4)
        x = self.conv(x)
        x = F.silu(x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-6))
        x = self.out(x).reshape(n, 2 * c, 2, 2, 2, t // 2, h // 2, w // 2)
        x = x.permute(0, 1, 5, 2, 6, 4, 7, 3).flatten(6, 7).flatten(4, 5).flatten(2, 3)
        return x[:, :, 1:]


class Factorized(nn.Module):
    """Images, and as a video again: convolutions over frames after those over space."""

    def __init__(self) -> None:
        super().__init__()
        self.space, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.time = nn.Conv3d(4, 4, (3, 1, 1), padding=(1, 0, 0))
        self.mix = nn.Parameter(torch.tensor([0.3]))

    def forward(self, x: Any) -> Any:
        n, c, t, h, w = x.shape
        y = self.space(x.permute(0, 2, 1, 3, 4).reshape(n * t, c, h, w))
        y = y[None, :].reshape(n, t, 4, h, w).permute(0, 2, 1, 3, 4)
        part: Tensor = torch.sigmoid(self.mix)
        z = part * y + (1 - part) * self.time(F.silu(self.norm(y)))
        return z.permute(0, 2, 1, 3, 4).reshape(n * t, 4, h, w)
