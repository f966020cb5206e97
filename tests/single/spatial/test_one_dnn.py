"""3-D convolutions that torch computes without oneDNN, computed with it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

import torch
import torch.nn.functional as F
from torch import Tensor

from hvd_ext.spatial import ProcessGrid, SpatialTensor, gather, scatter
from hvd_ext.spatial.layers.windows.one_dnn import conv3d
from tests.support.spatial.on_grids import mean, normal, on_grid

# Stride, padding and dilation.
ALIKE = ((1, 1, 1),) * 3
UNLIKE = ((1, 2, 1), (1, 0, 2), (1, 1, 2))


def is_ours(y: Tensor) -> bool:
    return y.grad_fn is not None and y.grad_fn.name() == "_ConvolutionBackward"


def assert_close(ours: Any, torchs: Any) -> None:
    for mine, true in zip(ours, torchs, strict=True):
        torch.testing.assert_close(
            mine, true, rtol=1e-4, atol=1e-5 * float(true.detach().abs().max())
        )


@pytest.mark.parametrize("how", [ALIKE, UNLIKE], ids=["alike", "unlike"])
@pytest.mark.parametrize("frozen", [(), ("x",), ("weight",), ("bias",), ("x", "bias")])
@pytest.mark.parametrize("biased", [True, False])
def test_first_and_second_derivatives_are_torchs(
    how: Any, frozen: tuple[str, ...], biased: bool
) -> None:
    given = {
        "x": normal(1, 16, 8, 17, 16).float(),
        "weight": normal(4, 16, 3, 3, 3, seed=1).float(),
        "bias": normal(4, seed=2).float() if biased else None,
    }
    leaves = [
        tensor.requires_grad_()
        for name, tensor in given.items()
        if tensor is not None and name not in frozen
    ]
    ours, torchs = (f(*given.values(), *how, 1) for f in (conv3d, torch.conv3d))
    assert is_ours(ours)
    assert not is_ours(torchs)
    assert_close([ours], [torchs])
    gradient = normal(*torchs.shape, seed=3).float().requires_grad_()
    found = [torch.autograd.grad(y, leaves, gradient, create_graph=True) for y in (ours, torchs)]
    assert_close(*found)
    # Sums of squares, so that each second derivative has something to say.
    twice = [
        torch.autograd.grad(
            sum(g.square().sum() for g in gradients),
            [*leaves, gradient],
            allow_unused=True,
            materialize_grads=True,
        )
        for gradients in found
    ]
    assert_close(*twice)


@pytest.mark.parametrize(
    ("x", "kernel"),
    [
        pytest.param(torch.zeros(2, 16, 8, 16, 16), (3, 3, 3), id="two samples"),
        pytest.param(torch.zeros(1, 16, 8, 15, 15), (3, 3, 3), id="too small to be worth it"),
        pytest.param(torch.zeros(1, 64, 8, 64, 2), (3, 3, 3), id="torch takes oneDNN itself"),
        pytest.param(torch.zeros(1, 16, 8, 5, 64), (3, 5, 5), id="and of large windows"),
        pytest.param(torch.zeros(1, 16, 8, 16, 16), (3, 1, 1), id="one cell wide"),
        pytest.param(torch.zeros(1, 16, 8, 16, 16).double(), (3, 3, 3), id="fp64"),
        pytest.param(torch.zeros(1, 16, 8, 16, 16).bfloat16(), (3, 3, 3), id="bf16"),
    ],
)
def test_all_others_are_left_to_torch(x: Tensor, kernel: tuple[int, int, int]) -> None:
    weight = torch.zeros(4, x.shape[1], *kernel, dtype=x.dtype, requires_grad=True)
    padding = [taps // 2 for taps in kernel]
    assert not is_ours(conv3d(x, weight, None, (1, 1, 1), padding, (1, 1, 1), 1))


def test_autocast_is_left_to_torch() -> None:
    weight = torch.zeros(4, 16, 3, 3, 3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = conv3d(torch.zeros(1, 16, 8, 16, 16), weight, None, *ALIKE, 1)
    assert not is_ours(y)
    assert y.dtype == torch.bfloat16


def test_who_switches_one_dnn_off_has_it_off() -> None:
    weight = torch.zeros(4, 16, 3, 3, 3, requires_grad=True)
    with torch.backends.mkldnn.flags(enabled=False):
        assert not is_ours(conv3d(torch.zeros(1, 16, 8, 16, 16), weight, None, *ALIKE, 1))


@pytest.mark.parametrize("grid", [(1, 1, 1), (2, 1, 1), (1, 3, 1), (1, 2, 2)])
def test_a_split_layer_uses_it(grid: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[bool] = []

    def watched(*arguments: Any) -> Tensor:
        y = conv3d(*arguments)
        used.append(is_ours(y))
        return y

    monkeypatch.setattr("hvd_ext.spatial.layers.windows.conv._KERNELS", {3: watched})
    x = normal(1, 16, 24, 25, 26).float()
    weight, gradient = normal(4, 16, 3, 3, 3, seed=1).float(), normal(1, 4, 24, 25, 26).float()

    def rank(shape: ProcessGrid) -> list[Tensor]:
        leaf, w = scatter(x, shape).local.requires_grad_(), weight.clone().requires_grad_()
        y: Any = F.conv3d(SpatialTensor(leaf, shape, x.shape[2:]), w, padding=1)  # type: ignore[arg-type]
        dx, dw = torch.autograd.grad(y.local, (leaf, w), scatter(gradient, shape).local)
        return [gather(y), gather(SpatialTensor(dx, shape, x.shape[2:])), mean(shape, dw)]

    found = on_grid(grid, rank)[0]
    leaf, w = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = F.conv3d(leaf, w, padding=1)
    assert_close(found, [y, *torch.autograd.grad(y, (leaf, w), gradient)])
    assert any(used)
