"""First and second derivatives of split layers against those of the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

import torch
import torch.nn.functional as F
from torch import Tensor

from hvd_ext.spatial import ProcessGrid, SpatialTensor, gather, scatter
from tests.support.spatial.on_grids import mean, normal, on_grid

LAYERS: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "conv": (lambda x, w: F.conv1d(x, w, None, 2, 2), (1, 1, 7), (2, 1, 4)),
    # Large enough for the sums of shares.
    "long": (lambda x, w: F.conv1d(x * x, w, None, 1, 1), (1, 1, 51), (1, 1, 3)),
    "long_pool": (lambda x, w: F.avg_pool1d(x * x, 3, 1, 1) * w, (1, 1, 51), (1,)),
    "conv2d": (lambda x, w: F.conv2d(x, w, None, 1, 1), (1, 1, 4, 3), (1, 1, 3, 3)),
    "transposed": (lambda x, w: F.conv_transpose1d(x, w, None, 2, 1), (1, 1, 4), (1, 2, 3)),
    "pool": (lambda x, w: F.avg_pool1d(x * x, 3, 2, 1) * w, (1, 1, 6), (1,)),
    "batch_norm": (lambda x, w: F.batch_norm(x, None, None, w, None, True), (2, 1, 4), (1,)),
    "group_norm": (lambda x, w: F.group_norm(x, 1, w), (1, 2, 4), (2,)),
    "global": (lambda x, w: x.sigmoid() * F.adaptive_avg_pool1d(x * w, 1), (1, 2, 4), (1,)),
    "gathered": (lambda x, w: x.flatten(1).tanh() @ w, (1, 1, 5), (5, 2)),
}


@pytest.mark.parametrize(
    "fast",
    [
        pytest.param(True, id="in random directions"),
        pytest.param(False, id="in all directions", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("layer", LAYERS)
def test_first_and_second_derivatives(layer: str, ranks: int, fast: bool) -> None:
    operation, shape, weights = LAYERS[layer]
    axes = (1, 1, ranks)
    dims = len(shape) - 2

    def forward(grid: ProcessGrid, x: Tensor, w: Tensor) -> tuple[Any, ...]:
        leaf = scatter(x, grid).local.requires_grad_()
        weight = w.clone().requires_grad_()
        return leaf, weight, operation(SpatialTensor(leaf, grid, shape[2:]), weight)

    def whole(y: Any) -> Tensor:
        return gather(y) if isinstance(y, SpatialTensor) else y

    def unsplit(grid: ProcessGrid, shard: Tensor) -> Tensor:
        return gather(SpatialTensor(shard.detach(), grid, shape[2:]))

    def piece(grid: ProcessGrid, y: Any, g: Tensor) -> Tensor:
        if not isinstance(y, SpatialTensor):
            return g.clone()
        return scatter(g, grid, len(y.extents)).local

    def once(grid: ProcessGrid, x: Tensor, w: Tensor) -> Tensor:
        return whole(forward(grid, x, w)[2]).detach()

    def back(grid: ProcessGrid, x: Tensor, w: Tensor, g: Tensor) -> list[Tensor]:
        leaf, weight, y = forward(grid, x, w)
        value = y.local if isinstance(y, SpatialTensor) else y
        dx, dw = torch.autograd.grad(value, [leaf, weight], piece(grid, y, g))
        return [unsplit(grid, dx), mean(grid, dw)]

    def twice(grid: ProcessGrid, *given: Tensor) -> list[Tensor]:
        x, w, g, ddx, ddw = given
        leaf, weight, y = forward(grid, x, w)
        value = y.local if isinstance(y, SpatialTensor) else y
        seed = piece(grid, y, g).requires_grad_()
        first = torch.autograd.grad(value, [leaf, weight], seed, create_graph=True)
        parts = [scatter(ddx, grid, dims).local, ddw]
        found = torch.autograd.grad(first, [leaf, weight, seed], parts, allow_unused=True)
        lx, lw, lg = (
            torch.zeros_like(like) if one is None else one
            for one, like in zip(found, [leaf, weight, seed], strict=True)
        )
        if isinstance(y, SpatialTensor):
            return [unsplit(grid, lx), mean(grid, lw), gather(SpatialTensor(lg, grid, y.extents))]
        return [unsplit(grid, lx), mean(grid, lw), mean(grid, lg)]

    def split(work: Callable[..., Any], *tensors: Tensor) -> Any:
        given = [tensor.detach() for tensor in tensors]
        results = on_grid(axes, lambda grid: work(grid, *given))
        return results[0]

    class Second(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
            ctx.save_for_backward(*tensors)
            return tuple(split(back, *tensors))

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
            return tuple(split(twice, *ctx.saved_tensors, *gradients))

    class First(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *tensors: Tensor) -> Tensor:
            ctx.save_for_backward(*tensors)
            return split(once, *tensors)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return Second.apply(*ctx.saved_tensors, gradient)

    x, w = normal(*shape).requires_grad_(), normal(*weights, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(First.apply, (x, w), fast_mode=fast)
    assert torch.autograd.gradgradcheck(First.apply, (x, w), fast_mode=fast)


def test_a_gradient_penalty_is_that_of_the_whole() -> None:
    """Second derivatives through several layers, a skip and empty shards."""
    x, w = normal(2, 2, 5), normal(2, 2, 3, seed=1)

    def penalty(x: Any, leaf: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = F.conv1d(x, w, None, 2, 1)
        y = F.conv_transpose1d(y.tanh(), w, None, 2, 1) + x
        y = F.batch_norm(y, None, None, training=True)
        loss = F.mse_loss(F.conv1d(y, w).sigmoid(), torch.zeros(2, 2, 3, dtype=x.dtype))
        return torch.autograd.grad(loss, leaf, create_graph=True)[0], loss

    whole, weight = x.clone().requires_grad_(), w.clone().requires_grad_()
    slope, _ = penalty(whole, whole, weight)
    slope.square().sum().backward()
    for ranks in (2, 4):

        def rank(grid: ProcessGrid) -> tuple[Tensor, Tensor]:
            leaf, mine = scatter(x, grid).local.requires_grad_(), w.clone().requires_grad_()
            slope, _ = penalty(SpatialTensor(leaf, grid, (5,)), leaf, mine)
            SpatialTensor(slope, grid, (5,)).square().sum().backward()
            return gather(SpatialTensor(leaf.grad, grid, (5,))), mean(grid, mine.grad)

        for dx, dw in on_grid((1, 1, ranks), rank):
            torch.testing.assert_close(dx, whole.grad)
            torch.testing.assert_close(dw, weight.grad)
