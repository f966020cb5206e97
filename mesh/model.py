"""The mesh-tangling model of Dryden et al. (IPDPS 2019), as in LBANN.

Blocks of convolution -> ReLU -> batch norm; the first convolution of a block has a stride. The last
convolution, 1x1, gives each pixel of the coarse map as many channels as it covers pixels of the
input. LBANN reshapes those to (1, H, W) as they lie in memory, which puts a prediction far from the
pixels that it was made from; `pixel_shuffle` puts it at their place.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from hvd_ext.errors import UsageError

CHANNELS = 18
KIND = "mesh"
OUTPUTS = ("pixel_shuffle", "reshape")


@dataclass(frozen=True)
class Architecture:
    """The settings that distinguish mesh models.

    Attributes:
        widths: channels of each convolution, block by block.
        strides: stride of each block's first convolution.
        output: "pixel_shuffle" or "reshape".
    """

    widths: tuple[tuple[int, ...], ...]
    strides: tuple[int, ...]
    output: str = "pixel_shuffle"

    def __post_init__(self) -> None:
        if self.output not in OUTPUTS:
            raise UsageError(f"output {self.output!r} is not {' or '.join(OUTPUTS)}")

    @property
    def factor(self) -> int:
        """Number of pixels of the input along a pixel of the coarse map."""
        factor = 1
        for stride in self.strides:
            factor *= stride
        return factor


def _blocks(channels: tuple[int, ...], convolutions: int) -> tuple[tuple[int, ...], ...]:
    return tuple((width,) * convolutions for width in channels)


# Side of the input, and the model that takes it.
PRESETS: dict[str, tuple[int, Architecture]] = {
    "2k": (2048, Architecture(_blocks((128, 256, 256, 384, 384, 128), 3), (2, 2, 2, 2, 2, 2))),
    "1k": (
        1024,
        Architecture(
            ((128, 256, 256, 256, 256), *_blocks((384, 512, 384, 384, 128), 5)),
            (2, 2, 2, 2, 2, 1),
        ),
    ),
    "small": (64, Architecture(_blocks((16, 24, 24), 2), (2, 2, 1))),
}


class MeshModel(nn.Module):
    """(N, 18, H, W) -> (N, 1, H, W): for each pixel, the probability that it must be relaxed.

    H and W are multiples of the architecture's `factor`.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        channels, kernel = CHANNELS, 5
        pairs = zip(architecture.widths, architecture.strides, strict=True)
        for block, (widths, stride) in enumerate(pairs, start=1):
            for index, width in enumerate(widths, start=1):
                name = f"{block}_{index}"
                conv = nn.Conv2d(
                    channels,
                    width,
                    kernel,
                    stride=stride if index == 1 else 1,
                    padding=kernel // 2,
                    bias=False,
                )
                self.add_module(f"conv{name}", conv)
                self.add_module(f"relu{name}", nn.ReLU())
                self.add_module(f"bn{name}", nn.BatchNorm2d(width))
                channels, kernel = width, 3
        self.prediction = nn.Conv2d(channels, architecture.factor**2, 1, bias=False)
        self.output: nn.Module = (
            nn.PixelShuffle(architecture.factor)
            if architecture.output == "pixel_shuffle"
            else Reshape(architecture.factor)
        )
        self.sigmoid = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        """Predict (N, 1, H, W), each in 0..1, from (N, 18, H, W)."""
        for layer in self.children():
            x = layer(x)
        return x


class Reshape(nn.Module):
    """(N, f^2, H, W) -> (N, 1, f H, f W), as the numbers lie in memory."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        samples, _, height, width = x.shape
        return x.reshape(samples, 1, self.factor * height, self.factor * width)


def mesh_model(preset: str, output: str = "pixel_shuffle") -> MeshModel:
    """Build the model of a preset.

    Args:
        preset: "2k", "1k" (the published ones) or "small".
        output: "pixel_shuffle", or "reshape" as published.

    Raises:
        UsageError: unknown preset or output.
    """
    if preset not in PRESETS:
        raise UsageError(f"preset {preset!r} is not one of {', '.join(PRESETS)}")
    architecture = PRESETS[preset][1]
    return MeshModel(Architecture(architecture.widths, architecture.strides, output))


def write_architecture(architecture: Architecture) -> dict[str, Any]:
    """The plain values that a checkpoint keeps of an architecture."""
    return asdict(architecture)
