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


def edsr(blocks: int = 16, features: int = 64) -> list[Shape]:
    """EDSR x2, by default the baseline: 16 blocks of 64 features, 1,369,859 elements."""
    inner = [(features, features)] * (2 * blocks + 1)
    convolutions = [(features, 3), *inner, (4 * features, features), (3, features)]
    return [s for out, inp in convolutions for s in ((out, inp, 3, 3), (out,))]


def edsr_full() -> list[Shape]:
    """EDSR x2 as published: 32 blocks of 256 features, 40,729,603 elements."""
    return edsr(32, 256)


MODELS = {"resnet50": resnet50, "edsr": edsr, "edsr_full": edsr_full}
