"""Split tensors used as torch is: modules as they are, checkpoints, mixed precision, strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hvd_ext.spatial import ProcessGrid, SpatialTensor, gather, scatter
from tests.support.spatial.on_grids import mean, normal, on_grid, size_of


def block() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 3, stride=2, padding=1, padding_mode="reflect"),
        nn.MaxPool2d(3, 2, 1),
        nn.PReLU(4),
    ).double()


def gradients_of(model: nn.Module, x: Any, run: Callable[[Any], Any]) -> dict[str, Tensor]:
    y = run(x)
    (y * y).sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("grid", [(1, 1, 2), (1, 2, 2), (1, 1, 6)])
@pytest.mark.parametrize("how", ["plain", "checkpoint", "frozen", "frozen_first", "channels_last"])
def test_modules_as_they_are(how: str, grid: tuple[int, int, int]) -> None:
    x = normal(2, 2, 9, 10)

    def run(model: nn.Module) -> Callable[[Any], Any]:
        if how == "frozen":
            model[3].requires_grad_(False)
        if how == "frozen_first":
            model[:3].requires_grad_(False)
        if how == "checkpoint":
            return lambda y: checkpoint(
                model[3:], checkpoint(model[:3], y, use_reentrant=False), use_reentrant=False
            )
        return model

    if how == "channels_last":
        x = x.to(memory_format=torch.channels_last)
    model = block()
    expected = gradients_of(model, x, run(model))
    models = [block() for _ in range(size_of(grid))]

    def rank(shape: ProcessGrid) -> dict[str, Tensor]:
        model = models[shape.space.rank]
        found = gradients_of(model, scatter(x, shape), run(model))
        return {name: mean(shape, gradient) for name, gradient in found.items()}

    for found in on_grid(grid, rank):
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-10)


def test_mixed_precision() -> None:
    x = normal(1, 2, 8, 8).float()
    model = block().float()
    with torch.autocast("cpu", torch.bfloat16):
        expected = model[:3](x)
    models = [block().float() for _ in range(4)]

    def rank(grid: ProcessGrid) -> tuple[torch.dtype, Tensor, dict[str, Tensor]]:
        layers = models[grid.space.rank][:3]
        with torch.autocast("cpu", torch.bfloat16):
            y = layers(scatter(x, grid))
            loss = y.float().square().mean()
        loss.backward()
        return y.dtype, y.gather(), {n: p.grad for n, p in layers.named_parameters()}

    for dtype, whole, gradients in on_grid((1, 4, 1), rank):
        assert dtype == expected.dtype
        torch.testing.assert_close(whole.float(), expected.float(), rtol=0.05, atol=0.05)
        assert all(gradient.dtype == torch.float32 for gradient in gradients.values())


def test_more_ranks_than_cells_under_autocast() -> None:
    """A rank without outputs has those of the others' dtype."""

    def rank(grid: ProcessGrid) -> torch.dtype:
        weight = torch.ones(3, 2, 3, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            y = F.conv1d(scatter(torch.ones(1, 2, 3), grid), weight, None, 1, 1)
            y = F.conv_transpose1d(y, weight, None, 1, 1)
        y.float().sum().backward()
        assert weight.grad is not None
        return y.dtype

    assert set(on_grid((1, 1, 5), rank)) == {torch.bfloat16}


@pytest.mark.parametrize("grid", [(1, 1, 2), (1, 2, 2), (2, 1, 2)])
def test_overlap_changes_no_bit(grid: tuple[int, int, int]) -> None:
    x, w = torch.randn(1, 3, 9, 10, 11), torch.randn(4, 3, 3, 3, 3)

    def results(overlap: bool) -> list[list[Tensor]]:
        def rank(shape: ProcessGrid) -> list[Tensor]:
            shape.overlap = overlap
            leaf, weight = scatter(x, shape).local.requires_grad_(), w.clone().requires_grad_()
            y = F.conv3d(SpatialTensor(leaf, shape, x.shape[2:]), weight, None, (1, 2, 1), 1)
            y = F.avg_pool3d(y, 3, 1, 1)
            torch.manual_seed(3)
            (
                y.local * torch.randn(y.local.shape, generator=torch.Generator().manual_seed(1))
            ).sum().backward()
            return [y.local, leaf.grad, weight.grad]

        return on_grid(grid, rank)

    for on, off in zip(results(True), results(False), strict=True):
        for mine, yours in zip(on, off, strict=True):
            assert torch.equal(mine, yours)


def test_what_is_sent_may_be_overwritten_at_once() -> None:
    x, w = normal(1, 1, 12), torch.ones(1, 1, 5, dtype=torch.float64)
    expected = F.conv1d(x, w, None, 1, 2)

    def rank(grid: ProcessGrid) -> Tensor:
        split = scatter(x, grid)
        y = F.conv1d(split, w, None, 1, 2)
        split.local.fill_(float("nan"))
        return gather(y)

    for found in on_grid((1, 1, 4), rank):
        torch.testing.assert_close(found, expected)


def test_a_shard_of_any_strides_is_sent_as_it_is() -> None:
    x, w = normal(2, 3, 6, 8), normal(2, 3, 3, 3, seed=1)

    def split(grid: ProcessGrid) -> Tensor:
        whole = x.transpose(2, 3)
        local = scatter(whole, grid).local
        strided = local.transpose(2, 3).contiguous().transpose(2, 3)
        assert not strided.is_contiguous()
        return gather(F.conv2d(SpatialTensor(strided, grid, (8, 6)), w, None, 1, 1))

    for found in on_grid((1, 2, 2), split):
        torch.testing.assert_close(found, F.conv2d(x.transpose(2, 3), w, None, 1, 1))


@pytest.mark.parametrize("behind", [nn.Identity(), nn.ReLU()])
def test_running_statistics_under_checkpointing(behind: nn.Module) -> None:
    """Recomputed as often as torch recomputes them, which stops early."""
    x = normal(2, 2, 6)

    def statistics(y: Any) -> Tensor:
        norm = nn.BatchNorm1d(2).double()
        model = nn.Sequential(norm, behind)
        checkpoint(model, y, use_reentrant=False).sum().backward()
        return norm.running_var

    expected = statistics(x.clone().requires_grad_())
    for found in on_grid((1, 1, 2), lambda grid: statistics(scatter(x, grid))):
        torch.testing.assert_close(found, expected)
