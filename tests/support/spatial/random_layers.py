"""Random layers, and what is expected of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hvd_ext.spatial import SpatialTensor, scatter
from tests.support.spatial.split_layers import Case, Grid, prepared, reference


def grids(dims: int, most: int) -> list[Grid]:
    """All grids over the last `dims` axes of at most `most` ranks."""
    every = itertools.product(range(1, most + 1), repeat=dims)
    return [(*(1,) * (3 - dims), *g) for g in every if torch.Size(g).numel() <= most]  # type: ignore[misc]


def numbers(rnd: random.Random, low: int, high: int, dims: int) -> list[int]:
    return [rnd.randint(low, high) for _ in range(dims)]


def extents(rnd: random.Random, dims: int) -> tuple[int, ...]:
    return tuple(numbers(rnd, 1, {1: 24, 2: 12, 3: 8}[dims], dims))


def conv(rnd: random.Random, dims: int, grid: Grid) -> Case:
    k, s = numbers(rnd, 1, 7 if dims == 1 else 5, dims), numbers(rnd, 1, 4, dims)
    d = numbers(rnd, 1, 3, dims)
    p: Any = [rnd.randint(0, kernel) for kernel in k]
    if rnd.random() < 0.2:
        p, s = "same", [1] * dims
    groups = rnd.choice([1, 1, 2])
    bias = rnd.random() < 0.5
    channels_in, channels_out = 2, 2
    function = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]

    def operation(x: Any, w: Tensor, b: Tensor | None = None) -> Any:
        return function(x, w, b, s, p, d, groups)

    shapes = [(channels_out, channels_in // groups, *k), *([(channels_out,)] if bias else [])]
    shape = (rnd.choice([1, 2]), channels_in, *extents(rnd, dims))
    return Case(f"conv {shape} k{k} s{s} p{p} d{d} g{groups}", grid, shape, shapes, operation)


def transposed(rnd: random.Random, dims: int, grid: Grid) -> Case:
    k, s = numbers(rnd, 1, 5, dims), numbers(rnd, 1, 4, dims)
    d = numbers(rnd, 1, 3, dims)
    p = [rnd.randint(0, kernel) for kernel in k]
    extra = [rnd.randint(0, max(a, b) - 1) for a, b in zip(s, d, strict=True)]
    groups = rnd.choice([1, 1, 2])
    bias = rnd.random() < 0.5
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[dims - 1]

    def operation(x: Any, w: Tensor, b: Tensor | None = None) -> Any:
        return function(x, w, b, s, p, extra, groups, d)

    shape = (rnd.choice([1, 2]), 2, *extents(rnd, dims))
    shapes = [(2, 2 // groups, *k), *([(2,)] if bias else [])]
    text = f"transposed {shape} k{k} s{s} p{p} o{extra} d{d} g{groups}"
    return Case(text, grid, shape, shapes, operation)


def max_pool(rnd: random.Random, dims: int, grid: Grid) -> Case:
    k, s, d = (numbers(rnd, 1, most, dims) for most in (4, 4, 2))
    p = [rnd.randint(0, kernel // 2) for kernel in k]
    ceil = rnd.random() < 0.5
    function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[dims - 1]
    shape = (1, 2, *extents(rnd, dims))
    # Where no tap of a window meets the sample, torch's own backward writes past its memory.
    p = [
        0 if extent <= (taps - 1) * step else pad
        for pad, extent, taps, step in zip(p, shape[2:], k, d, strict=True)
    ]

    def operation(x: Any) -> Any:
        return function(x, k, s, p, d, ceil)

    text = f"max_pool {shape} k{k} s{s} p{p} d{d} ceil={ceil}"
    return Case(text, grid, shape, [], operation, distinct=rnd.random() < 0.5)


def average_pool(rnd: random.Random, dims: int, grid: Grid) -> Case:
    k, s = numbers(rnd, 1, 4, dims), numbers(rnd, 1, 4, dims)
    p = [rnd.randint(0, kernel // 2) for kernel in k]
    ceil, include = rnd.random() < 0.5, rnd.random() < 0.5
    function = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[dims - 1]
    override = rnd.choice([None, None, 8]) if dims > 1 else None
    more = (override,) if dims > 1 else ()

    def operation(x: Any) -> Any:
        return function(x, k, s, p, ceil, include, *more)

    shape = (1, 2, *extents(rnd, dims))
    text = f"avg_pool {shape} k{k} s{s} p{p} ceil={ceil} include={include} divisor={override}"
    # Sums of thirds depend on their order, which torch does not promise.
    return Case(text, grid, shape, [], operation, exact=override is not None)


def adaptive(rnd: random.Random, dims: int, grid: Grid) -> Case:
    sizes = numbers(rnd, 1, rnd.choice([1, 6]), dims)
    largest = rnd.random() < 0.5
    names = ("adaptive_avg_pool", "adaptive_max_pool")
    function = getattr(F, f"{names[largest]}{dims}d")

    def operation(x: Any) -> Any:
        return function(x, sizes)

    shape = (1, 2, *extents(rnd, dims))
    text = f"{function.__name__} {shape} to {sizes}"
    distinct = largest and rnd.random() < 0.5
    return Case(text, grid, shape, [], operation, exact=largest, distinct=distinct)


def padded(rnd: random.Random, dims: int, grid: Grid) -> Case:
    shape = (1, 2, *extents(rnd, dims))
    mode = rnd.choice(["constant", "reflect", "replicate", "circular"])
    low = -1 if mode == "constant" else 0
    amounts = []
    for extent in reversed(shape[2:]):
        most = extent - 1 if mode == "reflect" else min(extent, 6)
        amounts += [rnd.randint(low, max(0, most)), rnd.randint(low, max(0, most))]

    def operation(x: Any) -> Any:
        return F.pad(x, amounts, mode)

    return Case(f"pad {shape} by {amounts} {mode}", grid, shape, [], operation)


def interpolated(rnd: random.Random, dims: int, grid: Grid) -> Case:
    linear = ("linear", "bilinear", "trilinear")[dims - 1]
    mode = rnd.choice(["nearest", "nearest-exact", linear, linear])
    options: dict[str, Any] = {"mode": mode}
    if mode == linear:
        options["align_corners"] = rnd.random() < 0.5
    if rnd.random() < 0.5:
        options["size"] = numbers(rnd, 1, 12, dims)
    else:
        options["scale_factor"] = [rnd.choice([0.5, 1.5, 2.0, 3.0]) for _ in range(dims)]

    def operation(x: Any) -> Any:
        return F.interpolate(x, **options)

    shape = (1, 2, *extents(rnd, dims))
    return Case(f"interpolate {shape} {options}", grid, shape, [], operation, exact=mode != linear)


def shuffled(rnd: random.Random, dims: int, grid: Grid) -> Case:
    factor, up = rnd.randint(1, 3), rnd.random() < 0.5
    height, width = numbers(rnd, 1, 7, 2)
    shape = (1, factor**2, height, width) if up else (1, 2, height * factor, width * factor)
    function = F.pixel_shuffle if up else F.pixel_unshuffle

    def operation(x: Any) -> Any:
        return function(x, factor)

    return Case(f"{function.__name__} {shape} by {factor}", grid, shape, [], operation)


def normed(rnd: random.Random, dims: int, grid: Grid) -> Case:
    shape = (rnd.choice([1, 3]), 4, *extents(rnd, dims))
    kind = rnd.choice(["batch", "group", "instance", "layer"])
    affine = rnd.random() < 0.7
    shapes: list[tuple[int, ...]] = [(4,), (4,)] if affine else []
    if kind == "layer":
        shapes = [shape[1:], shape[1:]] if affine else []

    def operation(x: Any, w: Tensor | None = None, b: Tensor | None = None) -> Any:
        if kind == "batch":
            return F.batch_norm(x, None, None, w, b, training=True)
        if kind == "group":
            return F.group_norm(x, 2, w, b)
        if kind == "instance":
            return F.instance_norm(x, weight=w, bias=b)
        return F.layer_norm(x, shape[1:], w, b)

    return Case(f"{kind} norm {shape} affine={affine}", grid, shape, shapes, operation, exact=False)


def lost(rnd: random.Random, dims: int, grid: Grid) -> Case:
    shape = (2, 3, *extents(rnd, dims))
    generator = torch.Generator().manual_seed(rnd.randrange(2**31))
    labels = torch.randint(0, 3, (2, *shape[2:]), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = -100
    targets = torch.rand(shape, generator=generator).double()
    weights = torch.tensor([1.0, 2.0, 4.0]).double()
    kind = rnd.choice(["mse", "l1", "bce", "ce", "ce", "sum"])
    reduction = rnd.choice(["mean", "sum"])
    smoothing = rnd.choice([0.0, 0.1])
    weighed = rnd.random() < 0.5

    def operation(x: Any) -> Any:
        split = isinstance(x, SpatialTensor)
        y: Any = scatter(targets, x.grid) if split and weighed else targets
        if kind == "sum":
            return (x * x).mean() if reduction == "mean" else (x * 2).sum()
        if kind == "mse":
            return F.mse_loss(x, y, reduction=reduction)
        if kind == "l1":
            return F.smooth_l1_loss(x, y, reduction=reduction, beta=0.5)
        if kind == "bce":
            return F.binary_cross_entropy_with_logits(x, y, reduction=reduction)
        z: Any = scatter(labels, x.grid, len(shape) - 2) if split else labels
        class_weights = weights if weighed else None
        return F.cross_entropy(x, z, class_weights, reduction=reduction, label_smoothing=smoothing)

    return Case(f"{kind} loss {shape} {reduction}", grid, shape, [], operation, exact=False)


FAMILIES: dict[str, tuple[Callable[[random.Random, int, Grid], Case], tuple[int, ...]]] = {
    "conv": (conv, (1, 2, 3)),
    "transposed": (transposed, (1, 2, 3)),
    "max_pool": (max_pool, (1, 2, 3)),
    "average_pool": (average_pool, (1, 2, 3)),
    "adaptive": (adaptive, (1, 2, 3)),
    "pad": (padded, (1, 2, 3)),
    "interpolate": (interpolated, (1, 2, 3)),
    "shuffle": (shuffled, (2,)),
    "norm": (normed, (1, 2, 3)),
    "loss": (lost, (1, 2, 3)),
}


def cases(
    family: str, count: int, seed: int, sizes: Sequence[int]
) -> list[tuple[Case, list[Tensor]]]:
    """Draw cases that torch takes, with what is expected of them."""
    rnd = random.Random(f"{family} {seed}")
    make, dims_of = FAMILIES[family]
    fit = {
        dims: [g for g in grids(dims, max(sizes)) if torch.Size(g).numel() in sizes]
        for dims in dims_of
    }
    drawn: list[tuple[Case, list[Tensor]]] = []
    while len(drawn) < count:
        dims = rnd.choice(dims_of)
        number = rnd.randrange(2**31)
        case = prepared(make(rnd, dims, rnd.choice(fit[dims])), number)
        expected = reference(case, number)
        if expected is not None:
            case.text = f"{case.text} on {case.grid}"
            drawn.append((case, expected))
    return drawn
