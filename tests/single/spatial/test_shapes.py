"""Dims moved, joined, cut and reduced: split against unsplit, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

import torch
import torch.nn.functional as F
from torch import Tensor

from hvd_ext.spatial import (
    ProcessGrid,
    SpatialTensor,
    UnsupportedError,
    gather,
    scatter,
    unsupported,
)
from tests.support.spatial.on_grids import mean, normal, on_grid

X = normal(2, 4, 7, 9)
W = normal(5, 4, seed=1)
WHOLE = normal(2, 3, 7, 9, seed=2)
POOLED = normal(2, 4, 1, 1, seed=3)
LAST = (0, 2, 3, 1)


def convnext(x: Any, w: Tensor) -> Any:
    """Its block: channels last, a norm and a linear layer, and back."""
    y = F.layer_norm(x.permute(*LAST), (4,), w[0], w[1])
    y = F.linear(F.gelu(F.linear(y, w)), w.t(), w[:4, 0])
    return x + (y * w[2]).permute(0, 3, 1, 2)


def shuffled(x: Any) -> Any:
    """ShuffleNet's, by hand."""
    n, c, h, w = x.size()
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, -1, h, w)


def focused(x: Any) -> Any:
    """YOLO's and Swin's: every second cell."""
    x = F.pad(x, (0, 1, 0, 1))
    corners = [x[..., i::2, j::2] for i in (0, 1) for j in (0, 1)]
    return torch.cat(corners, 1)


SAME: dict[str, Callable[[Any, Tensor], Any]] = {
    "ConvNeXt": convnext,
    "channels last and first": lambda x, w: x.permute(LAST).permute(0, 3, 1, 2),
    "transposed lead": lambda x, w: torch.transpose(x, 0, 1) * 2,
    "movedim": lambda x, w: x.movedim(1, -1) * w[0],
    "channels-last mean": lambda x, w: x.permute(LAST).mean(-1, keepdim=True) * w[0],
    "channels-last mean, gone": lambda x, w: x.permute(LAST).mean(-1),
    "channels-last softmax": lambda x, w: x.permute(LAST).softmax(-1),
    "channels-last cat": lambda x, w: torch.cat([x.permute(LAST), x.permute(LAST)], -1),
    "channels-last sum of space": lambda x, w: x.permute(LAST).sum((1, 2)),
    "channels-last flatten": lambda x, w: x.permute(LAST).flatten(1, 2),
    "channels-last view": lambda x, w: x.permute(LAST).reshape(2, 7, 9, 2, 2) * 2,
    "channels-last, whole": lambda x, w: x.permute(LAST) * WHOLE[:, :1].permute(LAST),
    "a new last dim": lambda x, w: (x.unsqueeze(-1) * w[0]).sum(-1),
    "ViT's patches": lambda x, w: x.flatten(2).transpose(1, 2),
    "ASPP": lambda x, w: torch.cat(
        [x, F.interpolate(x.mean((2, 3), keepdim=True), size=x.shape[-2:], mode="bilinear")], 1
    ),
    "CoordConv": lambda x, w: torch.cat([x, WHOLE], dim=1),
    "whole first": lambda x, w: torch.cat([WHOLE, x], dim=1),
    "plus a whole one": lambda x, w: WHOLE[:, :1] + x,
    "stacked with a whole one": lambda x, w: torch.stack([x[:, :3], WHOLE], 1),
    "expand": lambda x, w: x[:, :1].expand(-1, 3, -1, -1) * x[:, 1:],
    "expand, larger": lambda x, w: x.expand(2, *x.shape),
    "expand_as": lambda x, w: x[:, :1].expand_as(x) + POOLED.expand_as(x) * x,
    "view_as": lambda x, w: x.view_as(x) + WHOLE[:, :1].expand_as(x),
    "repeat": lambda x, w: x.repeat(1, 2, 1, 1),
    "repeat_interleave": lambda x, w: x.repeat_interleave(2, dim=1),
    "amax": lambda x, w: x.amax(1, keepdim=True) + x.amin(dim=(0, 1)),
    "max": lambda x, w: x.max(dim=1)[0] + torch.min(x, 1).values,
    "max of two": lambda x, w: torch.max(x, x * 2) + torch.min(x, -x),
    "argmax": lambda x, w: x.argmax(1),
    "CBAM": lambda x, w: torch.cat(
        [torch.max(x, 1)[0].unsqueeze(1), torch.mean(x, 1).unsqueeze(1)], dim=1
    ),
    "std and var": lambda x, w: x.std(1, keepdim=True) + x.var(dim=1, keepdim=True),
    "norm": lambda x, w: x.norm(dim=1) + torch.norm(x, 2, 1) + torch.linalg.vector_norm(x, dim=1),
    "normalize": lambda x, w: F.normalize(x) + F.normalize(x, p=1.0, dim=0),
    "topk": lambda x, w: x.topk(2, dim=1).values + x.sort(1)[0][:, :2],
    "ShuffleNet": lambda x, w: shuffled(x),
    "channel_shuffle": lambda x, w: F.channel_shuffle(x, 2),
    "flip and roll": lambda x, w: x.flip(1) + x.roll(1, 1),
    "centre crop": lambda x, w: x[:, :, 2:-2, 2:-2],
    "crop of one dim": lambda x, w: x[..., 3:] * x[..., :-3],
    "narrow": lambda x, w: x.narrow(3, 2, 4) + x.narrow(1, 0, 1)[..., 2:6],
    "focus": lambda x, w: focused(x),
    "every third, from the second": lambda x, w: x[:, 1:, 1::3, ::4],
    "None": lambda x, w: x[:, None] * x[:, :, None][:, :, 0][None, 0],
    "einsum of channels": lambda x, w: torch.einsum("bchw,oc->bohw", x, w),
    "einsum, dots": lambda x, w: torch.einsum("b c ... , o c -> b o ...", x, w),
    "einsum, no arrow": lambda x, w: torch.einsum("bkyz,ak", x, w),
    "einsum with a whole one": lambda x, w: torch.einsum("bchw,bdhw->bcd", x, WHOLE),
    "Gram matrix": lambda x, w: torch.einsum("bchw,bdhw->bcd", [x, x * x]),
    "einsum to the end": lambda x, w: torch.einsum("bchw,bdhw,oc->bhwod", x, x[:, :2], w),
    "einsum of bands": lambda x, w: torch.einsum("bchw,dwh->bcdhw", x, WHOLE[0].transpose(1, 2)),
    "matmul": lambda x, w: x.permute(LAST) @ w.t(),
    "matmul of each cell": lambda x, w: torch.matmul(x.permute(LAST).unsqueeze(-2), w.t()),
    "matmul by a vector": lambda x, w: x.permute(LAST).matmul(w[0]),
    "bmm": lambda x, w: torch.bmm(x.permute(LAST).sum(0), w.t().expand(7, 4, 5)) * 2,
    "all of it": lambda x, w: torch.stack([x.amax(), x.min(), x.max(), x.std(), x.var(False)]),
    "of space": lambda x, w: x.amax((2, 3)) + x.amin(dim=(-1, -2), keepdim=True)[..., 0, 0],
    "ties": lambda x, w: x.round().amax((0, 2, 3)) * x.round().max() + x.round().min(),
    "variance of space": lambda x, w: x.var((2, 3), keepdim=True) * x.std((1, 2, 3), False)[0],
    "variance and mean": lambda x, w: torch.stack(torch.var_mean(x, (2, 3), correction=0)),
    "deviation and mean": lambda x, w: torch.stack(torch.std_mean(x, dim=(0, 2, 3))),
    "norm of all": lambda x, w: x.norm() * x.norm(p=1, dim=(1, 2, 3)).sum() + torch.norm(x, 3),
    "norm of space": lambda x, w: torch.linalg.vector_norm(x, 2, (2, 3), keepdim=True) * x,
    "greatest norm": lambda x, w: torch.linalg.vector_norm(x, float("inf"), dim=(2, 3)),
    "norm of nothing": lambda x, w: (x * 0).norm() + x.sum(),
    "argmax of all": lambda x, w: torch.stack([x.argmax(), x.argmin(), (x > 9).int().argmax()]),
    "any and all": lambda x, w: torch.stack([(x > 2).any(), (x < 9).all(), x.isnan().any()]),
    "channels in another order": lambda x, w: x[:, [2, 1, 0]] + x[:, torch.tensor([0, 0, 3])],
}


def unshuffled(x: Any, r: int) -> Any:
    """BasicSR's pixel_unshuffle."""
    n, c, h, w = x.size()
    y = x.view(n, c, h // r, r, w // r, r)
    return y.permute(0, 1, 3, 5, 2, 4).reshape(n, c * r * r, h // r, w // r)


def shuffled_up(x: Any, r: int) -> Any:
    """Its adjoint, by hand."""
    n, c, h, w = x.shape
    y = x.reshape(n, c // r**2, r, r, h, w).permute(0, 1, 4, 2, 5, 3)
    return y.contiguous().view(n, c // r**2, h * r, w * r)


def windows(x: Any) -> Any:
    """Swin's, of 3 x 3 cells, and back, with something done to each of them meanwhile."""
    n, h, w, c = x.shape
    y = x.view(n, h // 3, 3, w // 3, 3, c).permute(0, 1, 3, 2, 4, 5).contiguous()
    y = y * y.mean((3, 4), keepdim=True)
    return y.permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)


CUT: dict[str, Callable[[Any, Tensor], Any]] = {
    "unshuffled": lambda x, w: unshuffled(x[..., :6, :6], 2) * w[0, 0],
    "unshuffled by 3": lambda x, w: unshuffled(x[:, :, :6], 3) * unshuffled(x[:, :, :6], 3),
    "unshuffled, and shuffled": lambda x, w: (
        shuffled_up(unshuffled(x[..., 1:, :], 3), 3) * x[..., 1:, :]
    ),
    "shuffled": lambda x, w: shuffled_up(x, 2),
    "shuffled in one dim": lambda x, w: (
        x.view(2, 2, 2, 7, 9).permute(0, 1, 3, 2, 4).reshape(2, 2, 14, 9) * 2
    ),
    "cut in one dim": lambda x, w: x.view(2, 4, 7, 3, 3).permute(0, 1, 4, 2, 3) ** 2,
    "windows": lambda x, w: windows(x[:, :, 1:].permute(LAST)) * w[0],
    "patches": lambda x, w: x.view(2, 4, 7, 3, 3).transpose(3, 4).movedim(3, 0).sum(0),
    "cut, and put together": lambda x, w: x.view(2, 4, 7, 3, 3).view(2, 4, 7, 9) + x,
    "parted, and back": lambda x, w: x.permute(2, 0, 1, 3).permute(1, 2, 0, 3) * x,
}
# Split dims that stand apart, with whole ones between them.
APART: dict[str, Callable[[Any, Tensor], Any]] = {
    "parted": lambda x, w: x.permute(2, 0, 1, 3) * w[0, 0],
    "blocks": lambda x, w: x.view(2, 4, 7, 3, 3).square(),
    "both": lambda x, w: torch.cat([x.permute(2, 0, 1, 3), x.permute(2, 0, 1, 3)], 1),
    "einsum": lambda x, w: torch.einsum("bchw,oc->bhow", x, w),
}
GATHERED: dict[str, Callable[[Any, Tensor], Any]] = {
    "tokens of windows": lambda x, w: (
        x[:, :, :6].view(2, 4, 2, 3, 3, 3).transpose(3, 4).flatten(2, 3) * 2
    ),
}


@pytest.mark.parametrize("grid", [(1, 1, 3), (1, 2, 2), (1, 8, 1)])
@pytest.mark.parametrize("what", [*SAME, *CUT, *APART, *GATHERED])
def test_split_is_unsplit(what: str, grid: tuple[int, int, int]) -> None:
    function = (SAME | CUT | APART | GATHERED)[what]

    def found(leaf: Tensor, x: Any, w: Tensor, whole: Callable[[Any], Tensor]) -> list[Tensor]:
        with unsupported.layer("", allow_gather=what not in CUT and what not in APART):
            y = whole(function(x, w))
        if y.requires_grad:
            (y * torch.arange(y.numel()).view(y.shape).cos()).sum().backward()
        unused = torch.zeros_like
        return [y.detach(), *(unused(t) if t.grad is None else t.grad for t in (leaf, w))]

    def rank(shape: ProcessGrid) -> list[Tensor]:
        leaf, w = scatter(X, shape).local.requires_grad_(), W.clone().requires_grad_()
        x = SpatialTensor(leaf, shape, X.shape[2:])
        y, dx, dw = found(leaf, x, w, lambda y: gather(y) if isinstance(y, SpatialTensor) else y)
        return [y, gather(x.like(dx)), mean(shape, dw)]

    leaf, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    expected = found(leaf, leaf, w, lambda y: y)
    for mine in on_grid(grid, rank):
        for one, other in zip(mine, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a split dim moved": (lambda x: x.transpose(2, 3), "stay in their order"),
    "a split dim moved behind another": (lambda x: x.permute(3, 0, 2, 1), "stay in their order"),
    "a convolution, channels last": (
        lambda x: F.conv2d(x.permute(LAST), W[:, :, None, None]),
        "2d",
    ),
    "linear over space": (lambda x: F.linear(x, torch.ones(2, 9).double()), "linear along"),
    "beside one that is not permuted": (lambda x: x.permute(LAST) + x, "must be the same"),
    "cat of other extents": (lambda x: torch.cat([x, WHOLE[..., 1:]], 1), "number 1"),
    "repeat over space": (lambda x: x.repeat(1, 1, 2, 1), "repeated"),
    "einsum over one": (lambda x: torch.einsum("bchw->bch", x), "einsum 'bchw->bch'"),
    "einsum that moves them": (lambda x: torch.einsum("bchw->bwch", x), "in their order"),
    "attention over space": (
        lambda x: torch.einsum("bchw,bcij->bhwij", x, x),
        "a split dim must pair with the same dim",
    ),
    "a diagonal": (lambda x: torch.einsum("bcii->bci", x[..., :7]), "must pair with the same dim"),
    "matmul of space": (lambda x: x @ torch.ones(9, 2).double(), "Tensor.matmul"),
    "matmul of two": (lambda x: torch.matmul(x[..., :7], x), "must pair with the same dim"),
    "matmul of others": (lambda x: torch.matmul(x, torch.ones(3, 2)), "matmul"),
    "norm of order 0": (lambda x: x.norm(0), "order 0"),
    "median of all": (lambda x: x.median(), "without a dim"),
    "argmax over space": (lambda x: x.argmax(3), "dim 3"),
    "a mask": (lambda x: x[x > 0], "x["),
    "a split number": (lambda x: x[..., 0], "x["),
    "backwards": (lambda x: x.flip(3), "dim 3"),
    "an empty slice": (lambda x: x[..., 9:], "no cells"),
    "too many dots": (lambda x: x[..., 0, ...], "x["),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_moves_or_needs_other_cells_is_refused(what: str) -> None:
    operation, words = REFUSED[what]

    def rank(grid: ProcessGrid) -> str:
        with pytest.raises(UnsupportedError) as caught:
            operation(scatter(X, grid))
        return str(caught.value)

    (sentence,) = set(on_grid((1, 8, 2), rank))
    assert words in sentence


def test_a_slice_is_a_copy_and_says_so() -> None:
    def rank(grid: ProcessGrid) -> None:
        x = scatter(X, grid)
        part = x[:, :, 1:]
        with pytest.raises(UnsupportedError, match="in place"):
            x.relu_()
        part.mul_(2)
        with pytest.raises(UnsupportedError, match="in place"):
            _ = x + 1

    on_grid((1, 2, 1), rank)


def test_one_channel_of_a_row_is_flattened_to_the_whole() -> None:
    """Its shape stays, but a linear layer is to come."""
    row = normal(2, 1, 9)
    for found in on_grid((1, 1, 2), lambda grid: scatter(row, grid).flatten(1)):
        assert not isinstance(found, SpatialTensor)
        assert torch.equal(found, row.flatten(1))


@pytest.mark.parametrize("ranks", [2, 5, 12])
def test_the_largest_along_the_only_split_dim_is_the_first_one(ranks: int) -> None:
    """Equal ones and NaN included, and ranks without cells."""
    x = X[:, :, 0].round()
    x[0, 0, 4:6] = float("nan")

    def found(y: Any) -> list[Tensor]:
        value, place = y.max(dim=-1)
        least = torch.min(y, 2, keepdim=True)
        return [value, place, least.values, least.indices, y.argmax(2), y.argmin(-1, True)]

    def gradient(leaf: Tensor, y: Any) -> Tensor:
        y.max(-1).values.nan_to_num().square().sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    def rank(grid: ProcessGrid) -> list[Tensor]:
        split = scatter(x, grid)
        mine = gradient(split.local.requires_grad_(), split)
        return [*(one.detach() for one in found(split)), gather(split.like(mine))]

    leaf = x.clone().requires_grad_()
    expected = [*found(x), gradient(leaf, leaf)]
    for mine in on_grid((1, 1, ranks), rank):
        for one, other in zip(mine, expected, strict=True):
            torch.testing.assert_close(one, other, equal_nan=True)
