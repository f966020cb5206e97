"""Shapes of the gradients that the benchmarks exchange, without building a model."""

from __future__ import annotations

Shape = tuple[int, ...]


def resnet50() -> list[Shape]:
    """ResNet-50 v1.5: 161 parameters, 25,557,032 elements."""
    shapes: list[Shape] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for shape in ((width, channels, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)):
                shapes += [shape, (shape[0],), (shape[0],)]
            if block == 0:
                shapes += [(4 * width, channels, 1, 1), (4 * width,), (4 * width,)]
            channels = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


def edsr() -> list[Shape]:
    """EDSR baseline x2: 16 blocks of 64 features, 1,369,859 elements."""
    convolutions = [(64, 3), *[(64, 64)] * 33, (256, 64), (3, 64)]
    return [s for out, inp in convolutions for s in ((out, inp, 3, 3), (out,))]


MODELS = {"resnet50": resnet50, "edsr": edsr}
