"""What random cases do not show of layers: statistics, dropout, indices, torch's small print."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hvd_ext.spatial import ProcessGrid, SpatialTensor, gather, scatter
from tests.support.spatial.on_grids import mean, normal, on_grid


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("grid", [(1, 1, 3), (1, 2, 2), (1, 3, 2)])
def test_running_statistics_with_uneven_shards(
    grid: tuple[int, int, int], momentum: float | None
) -> None:
    x = normal(2, 3, 5, 4) * 3 + 100
    whole = nn.BatchNorm2d(3, momentum=momentum).double()
    expected = [whole(x), whole(x * 2)]
    whole.eval()
    expected.append(whole(x))

    def rank(shape: ProcessGrid) -> None:
        layer = nn.BatchNorm2d(3, momentum=momentum).double()
        found = [layer(scatter(x, shape)), layer(scatter(x * 2, shape))]
        layer.eval()
        found.append(layer(scatter(x, shape)))
        for mine, true in zip(found, expected, strict=True):
            torch.testing.assert_close(mine.gather(), true, rtol=1e-10, atol=1e-10)
        for name, value in whole.state_dict().items():
            torch.testing.assert_close(layer.state_dict()[name], value, rtol=1e-12, atol=1e-12)

    on_grid(grid, rank)


@pytest.mark.parametrize("mean_over_std", [0, 10, 1000])
@pytest.mark.parametrize("grid", [(1, 1, 2), (1, 3, 1), (1, 2, 2)])
def test_batch_norm_in_fp32_is_as_exact_as_torchs(
    grid: tuple[int, int, int], mean_over_std: float
) -> None:
    """Against fp64: output, gradients of input, weight and bias."""
    x = (normal(4, 8, 32, 31) + mean_over_std).float()
    gradient = normal(4, 8, 32, 31, seed=1).float()
    weight, bias = normal(2, 8, seed=2).float()

    def found(leaf: Tensor, x: Any, g: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
        w, b = (parameter.clone().requires_grad_() for parameter in (w, b))
        y = F.batch_norm(x, None, None, w, b, training=True)
        y = y.local if isinstance(y, SpatialTensor) else y
        return [y.detach(), *torch.autograd.grad(y, (leaf, w, b), g)]

    def torchs(dtype: torch.dtype) -> list[Tensor]:
        leaf = x.to(dtype).requires_grad_()
        return found(leaf, leaf, gradient.to(dtype), weight.to(dtype), bias.to(dtype))

    def rank(shape: ProcessGrid) -> list[Tensor]:
        leaf = scatter(x, shape).local.requires_grad_()
        split = SpatialTensor(leaf, shape, x.shape[2:])
        y, dx, dw, db = found(leaf, split, scatter(gradient, shape).local, weight, bias)
        return [gather(split.like(y)), gather(split.like(dx)), mean(shape, dw), mean(shape, db)]

    exact = torchs(torch.float64)
    for mine, theirs, true in zip(
        on_grid(grid, rank)[0], torchs(torch.float32), exact, strict=True
    ):
        assert (mine - true).norm() <= 1.3 * (theirs - true).norm()


def test_dropout_differs_over_space_and_repeats_by_seed() -> None:
    def rank(grid: ProcessGrid) -> tuple[Tensor, Tensor, Tensor]:
        # Threads share torch's generator: draw for one rank at a time.
        ones = SpatialTensor(torch.ones(1, 2, 50), grid, (50 * grid.space.size,))
        generator_seed = 7
        found = []
        for rank in range(grid.space.size):
            if rank == grid.space.rank:
                for _ in range(2):
                    torch.manual_seed(generator_seed)
                    found.append(F.dropout(ones, 0.5).local)
                torch.manual_seed(generator_seed)
                found.append(F.dropout1d(ones, 0.5).local)
            grid.space.allreduce(torch.zeros(1))
        return found[0], found[1], found[2]

    results = on_grid((1, 1, 3), rank)
    for first, again, channels in results:
        assert torch.equal(first, again)
        assert set(first.unique().tolist()) == {0.0, 2.0}
        assert torch.equal(channels, results[0][2])
    assert not torch.equal(results[0][0], results[1][0])


@pytest.mark.parametrize("grid", [(1, 2, 3), (1, 1, 4), (1, 3, 1), (1, 1, 1)])
def test_indices_of_maxima_are_global(grid: tuple[int, int, int]) -> None:
    x = torch.randperm(2 * 35).double().view(1, 2, 5, 7)
    options = {"stride": 2, "padding": 1, "ceil_mode": True, "return_indices": True}
    expected = F.max_pool2d(x, 3, **options)

    def rank(grid: ProcessGrid) -> list[Tensor]:
        return [y.gather() for y in F.max_pool2d(scatter(x, grid), 3, **options)]

    for values, indices in on_grid(grid, rank):
        assert torch.equal(values, expected[0])
        assert torch.equal(indices, expected[1])


def test_means_of_16_bits_do_not_overflow() -> None:
    x = torch.full((1, 1, 200, 200), 100.0, dtype=torch.float16)

    def rank(grid: ProcessGrid) -> list[float]:
        split = scatter(x, grid)
        found = [split.mean((2, 3)), F.adaptive_avg_pool2d(split, 1)]
        return [value.item() for value in (*found, F.l1_loss(split, torch.zeros_like(x)))]

    assert on_grid((1, 2, 2), rank) == [[100.0, 100.0, 100.0]] * 4


MAP = torch.tensor([[2.0, 1, 2, 0, 2, 1, 2], [1, 2, 2, 0, 2, 2, 0]]).repeat(1, 1, 3, 1)
HALF = torch.full((1, 2, 40, 30), 300.0, dtype=torch.float16)
EMPTY = torch.zeros(0, 4, 5, 9)
LONG = torch.arange(64.0).view(1, 1, 64)
AFFINE = torch.tensor([1.0, 2, 3, 4])
WEIGHT = torch.arange(12.0).view(2, 2, 1, 3)
NANS = torch.tensor([[1.0, 2, 3, 4], [1, 2, 3, float("nan")]]).view(1, 2, 1, 4)
AGREE: dict[str, tuple[Callable[[Any], Any], Tensor]] = {
    "nearest": (lambda x: F.interpolate(x, scale_factor=2.3), LONG),
    "nearest-exact": (lambda x: F.interpolate(x, scale_factor=2.3, mode="nearest-exact"), LONG),
    "nearest, 2-D": (lambda x: F.interpolate(x, scale_factor=(3, 2.3)), LONG.view(1, 1, 2, 32)),
    "ties": (lambda x: F.adaptive_max_pool2d(x, (2, 3)), MAP),
    "NaN": (lambda x: F.adaptive_max_pool2d(x, 1), NANS),
    "lowest": (
        lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)[1],
        torch.full((1, 1, 6, 7), -torch.inf),
    ),
    "mean of channels": (lambda x: x.mean(1), HALF.view(1, 240, 5, 2)),
    "average pool": (lambda x: F.avg_pool2d(x, 20, 10), HALF),
    "average pool, 1-D": (lambda x: F.avg_pool1d(x, 400, 200), HALF.view(1, 2, 1200)),
    "mse of weights": (lambda x: F.mse_loss(x, x * 2, weight=MAP), MAP + 1),
    "empty batch norm": (lambda x: F.batch_norm(x, None, None, AFFINE, training=True), EMPTY),
    "empty group norm": (lambda x: F.group_norm(x, 2), EMPTY),
    "one value of a group": (lambda x: F.group_norm(x, 2), torch.ones(3, 2, 1, 1)),
    "channels_last": (
        lambda x: F.batch_norm(F.group_norm(x, 2), AFFINE, AFFINE) * MAP.sum(1),
        torch.arange(168.0).sin().view(1, 4, 6, 7).to(memory_format=torch.channels_last),
    ),
    "16-bit group norm": (lambda x: F.group_norm(x, 2, AFFINE), torch.ones(1, 4, 5, 6).bfloat16()),
    "16-bit layer norm": (
        lambda x: F.layer_norm(x, (4, 5), torch.ones(4, 5), torch.ones(4, 5)),
        torch.ones(1, 2, 4, 5).bfloat16(),
    ),
    "input": (
        lambda x: F.conv2d(input=torch.clamp(input=x, min=1.0), weight=WEIGHT),
        MAP.expand(1, 2, 6, 7),
    ),
    "parts": (lambda x: torch.chunk(x, chunks=2, dim=1)[1] + x.split(split_size=1, dim=1)[0], NANS),
    "axis": (
        lambda x: torch.reshape(torch.mean(input=x, axis=1, keepdims=True), shape=(-1, 6, 7)),
        MAP,
    ),
    "another's type": (lambda x: torch.ones(1, 2, 1, 1).type_as(x) * x, NANS.double()),
    "no tensor": (lambda x: x * float((x == None) or (x in [None]) or (x != None)), NANS),  # noqa: E711
}


@pytest.mark.parametrize("what", AGREE)
def test_small_print_of_torch(what: str) -> None:
    operation, x = AGREE[what]

    def results(leaf: Tensor, x: Any) -> list[Tensor]:
        y = operation(x)
        if not y.requires_grad:
            return [gather(y) if isinstance(y, SpatialTensor) else y]
        y.sum().backward()
        whole = leaf.grad
        if isinstance(x, SpatialTensor):
            whole = gather(x.like(leaf.grad))
        return [gather(y) if isinstance(y, SpatialTensor) else y, whole]

    def rank(grid: ProcessGrid) -> list[Tensor]:
        leaf = scatter(x, grid).local.requires_grad_()
        return results(leaf, SpatialTensor(leaf, grid, x.shape[2:]))

    leaf = x.clone().requires_grad_()
    expected = results(leaf, leaf)
    for found in on_grid((1, 1, 3), rank):
        for mine, true in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, true, equal_nan=True)


def test_dropout_in_place() -> None:
    def rank(grid: ProcessGrid) -> None:
        for drop in (F.dropout, F.dropout1d):
            x = scatter(torch.ones(1, 2, 5), grid)
            drop(x, 1.0, inplace=True)
            assert not x.gather().any()

    on_grid((1, 1, 2), rank)


@pytest.mark.parametrize("amounts", [(0, 0), (-1, 0)])
def test_what_was_padded_is_a_tensor_of_its_own(amounts: tuple[int, int]) -> None:
    def rank(grid: ProcessGrid) -> Tensor:
        split = scatter(torch.ones(1, 1, 4), grid)
        F.pad(split, amounts).mul_(2)
        return split.gather()

    for ranks in (1, 2):
        for found in on_grid((1, 1, ranks), rank):
            assert torch.equal(found, torch.ones(1, 1, 4))


def test_channels_last_group_norm() -> None:
    x = normal(2, 4, 5, 6).to(memory_format=torch.channels_last)
    for found in on_grid((1, 2, 1), lambda grid: gather(F.group_norm(scatter(x, grid), 2))):
        torch.testing.assert_close(found, F.group_norm(x, 2))
