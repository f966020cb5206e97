"""DCGAN, Pix2Pix and CycleGAN, written from their papers with few channels: no package has them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def dcgan_generator(width: int = 4) -> nn.Module:
    """Radford et al. (2016), but for the first layer: noise over space grows 8-fold."""

    def up(inside: int, outside: int) -> list[nn.Module]:
        layer = nn.ConvTranspose2d(inside, outside, 4, stride=2, padding=1, bias=False)
        return [layer, nn.BatchNorm2d(outside), nn.ReLU(inplace=True)]

    return nn.Sequential(
        *up(3, 4 * width),
        *up(4 * width, 2 * width),
        nn.ConvTranspose2d(2 * width, 3, 4, stride=2, padding=1),
        nn.Tanh(),
    )


def dcgan_discriminator(width: int = 4) -> nn.Module:
    """Strided convolutions, batch norm but for the first, and one number for each place."""

    def down(inside: int, outside: int) -> list[nn.Module]:
        layer = nn.Conv2d(inside, outside, 4, stride=2, padding=1, bias=False)
        return [layer, nn.BatchNorm2d(outside), nn.LeakyReLU(0.2, inplace=True)]

    return nn.Sequential(
        nn.Conv2d(3, width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2, inplace=True),
        *down(width, 2 * width),
        *down(2 * width, 4 * width),
        nn.Conv2d(4 * width, 1, 4),
        nn.Sigmoid(),
        nn.Flatten(),
    )


class Pix2Pix(nn.Module):
    """Isola et al. (2017): a U-Net of blocks within blocks, dropout in the innermost."""

    def __init__(self, outside: int = 3, width: int = 4, depth: int = 3, outermost: bool = True):
        super().__init__()
        inside = width if outermost else 2 * outside
        down = nn.Conv2d(outside, inside, 4, stride=2, padding=1, bias=False)
        middle: list[nn.Module] = []
        if depth > 1:
            middle = [Pix2Pix(inside, width, depth - 1, outermost=False)]
        joined = inside if depth == 1 else 2 * inside
        up = nn.ConvTranspose2d(joined, outside, 4, stride=2, padding=1, bias=outermost)
        last: list[nn.Module] = [nn.Tanh()] if outermost else [nn.BatchNorm2d(outside)]
        first: list[nn.Module] = [] if outermost else [nn.LeakyReLU(0.2, inplace=False)]
        norm: list[nn.Module] = [] if outermost or depth == 1 else [nn.BatchNorm2d(inside)]
        dropout: list[nn.Module] = [nn.Dropout(0.5)] if depth == 1 else []
        self.block = nn.Sequential(
            *first, down, *norm, *middle, nn.ReLU(inplace=True), up, *last, *dropout
        )
        self.outermost = outermost

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.block(x)
        return made if self.outermost else torch.cat([x, made], 1)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(width, width, 3),
            nn.InstanceNorm2d(width),
            nn.ReLU(inplace=True),
            nn.ReflectionPad2d(1),
            nn.Conv2d(width, width, 3),
            nn.InstanceNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


def cyclegan_generator(width: int = 4, blocks: int = 2) -> nn.Module:
    """Zhu et al. (2017): reflections at the borders, two strides, residual blocks, and back."""

    def normal(channels: int) -> list[nn.Module]:
        return [nn.InstanceNorm2d(channels), nn.ReLU(inplace=True)]

    return nn.Sequential(
        nn.ReflectionPad2d(3),
        nn.Conv2d(3, width, 7),
        *normal(width),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        *normal(2 * width),
        nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1),
        *normal(4 * width),
        *(Residual(4 * width) for _ in range(blocks)),
        nn.ConvTranspose2d(4 * width, 2 * width, 3, stride=2, padding=1, output_padding=1),
        *normal(2 * width),
        nn.ConvTranspose2d(2 * width, width, 3, stride=2, padding=1, output_padding=1),
        *normal(width),
        nn.ReflectionPad2d(3),
        nn.Conv2d(width, 3, 7),
        nn.Tanh(),
    )


def patch_discriminator(width: int = 4) -> nn.Module:
    """Pix2Pix's and CycleGAN's: a verdict for each patch."""

    def block(inside: int, outside: int, stride: int) -> list[nn.Module]:
        layer = nn.Conv2d(inside, outside, 4, stride=stride, padding=1)
        return [layer, nn.InstanceNorm2d(outside), nn.LeakyReLU(0.2, inplace=True)]

    return nn.Sequential(
        nn.Conv2d(3, width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2, inplace=True),
        *block(width, 2 * width, 2),
        *block(2 * width, 4 * width, 1),
        nn.Conv2d(4 * width, 1, 4, padding=1),
    )
