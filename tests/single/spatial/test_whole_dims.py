"""Dims whose axis of the grid has one rank are whole: whatever works along channels works there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hvd_ext.spatial import GridShape, ProcessGrid, UnsupportedError, gather, scatter, verify
from tests.support.spatial.on_grids import normal, on_grid

SHAPE = (2, 4, 4, 6, 8)
GRIDS = [
    *(GridShape(height=2), GridShape(depth=2, width=2), GridShape(width=3), GridShape(depth=3)),
    *(GridShape(height=2, width=2), GridShape(channels=2), GridShape()),
]
Function = Callable[[Any], Any]


def frames(x: Any) -> Any:
    """Time in the batch."""
    return x.permute(0, 2, 1, 3, 4).reshape(8, 4, 6, 8)


def by_frame(x: Any, f: Function) -> Any:
    """`f` of each frame, as a batch of images, and back."""
    return f(frames(x)).view(2, 4, 4, 6, 8).transpose(1, 2)


# What is done along which axes of the grid: 0 for depth.
ALONG: dict[str, tuple[Function, set[int]]] = {
    "cat of repeated frames": (lambda x: torch.cat([x[:, :, :1]] * 2 + [x], 2), {0}),
    "cat along height": (lambda x: torch.cat((x, x[:, :, :, :2].sin()), 3), {1}),
    "split": (lambda x: x.split((1, 3), dim=2)[1] * x.split((1, 3), dim=2)[0], {0}),
    "chunk": (lambda x: x.chunk(2, 4)[0] * x.chunk(2, 4)[1], {2}),
    "a number": (lambda x: x[:, :, 0] * x[:, :, -1], {0}),
    "a list": (lambda x: x[:, :, :, :, [3, 0, 0]], {2}),
    "a number between": (lambda x: x[..., 1, :] + x.select(3, 2), {1}),
    "frames by None": (lambda x: x[:, :, 1, None] * x, {0}),
    "mean": (lambda x: x - x.mean(4, keepdim=True) * x.mean(4).unsqueeze(-1), {2}),
    "sum between": (lambda x: x.sum(3).square(), {1}),
    "softmax": (lambda x: x.softmax(-1) * x.log_softmax(2), {0, 2}),
    "roll and flip": (lambda x: x.roll(3, -1) * x.flip(2, 4), {0, 2}),
    "sort and cumsum": (lambda x: x.sort(3)[0] * x.cumsum(3), {1}),
    "repeated": (lambda x: x.repeat_interleave(2, dim=2).repeat(1, 1, 1, 1, 2), {0, 2}),
    "expanded": (lambda x: x[:, :, :1].expand(-1, -1, 4, -1, -1) * x, {0}),
    "selected": (lambda x: x.index_select(2, torch.tensor([2, 0])), {0}),
    "unbind and stack": (lambda x: torch.stack(x.unbind(2)[::-1], 2), {0}),
    "Fourier along width": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * 1j, n=8), {2}),
    "Fourier of planes": (
        lambda x: torch.fft.ifft2(torch.fft.fft2(x, dim=(2, 3)).abs(), dim=(2, 3)).abs(),
        {0, 1},
    ),
    "transposed": (lambda x: x.transpose(2, 3).square().transpose(2, 3), {0}),
    "linear along width": (lambda x: F.linear(x, torch.ones(2, 8).double()), {2}),
    "layer norm along width": (lambda x: F.layer_norm(x, (8,)), {2}),
    "matmul along width": (lambda x: x @ torch.ones(8, 3).double() * 2, {2}),
    "einsum of frames": (lambda x: torch.einsum("bcthw,bcshw->btshw", x, x.sin()), {0}),
    "frames in the batch": (lambda x: by_frame(x, lambda y: F.normalize(y, dim=1)), {0}),
    "frames in channels": (lambda x: F.avg_pool2d(x.flatten(1, 2), 3, 1, 1), {0}),
    "frames as images": (lambda x: F.interpolate(frames(x), scale_factor=2.0), {0}),
    "frames convolved": (
        lambda x: by_frame(x, lambda y: F.conv2d(y, normal(4, 4, 3, 3), padding=1)),
        {0},
    ),
    "padded frames": (
        lambda x: F.pad(frames(x).unsqueeze(2), (0, 0, 1, 1, 2, 0), "replicate"),
        {0},
    ),
    "groups of channels": (lambda x: F.conv3d(x.view(4, 2, 4, 6, 8), normal(3, 2, 3, 3, 1)), set()),
}


class Along(nn.Module):
    """A function between two layers."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.function = nn.Conv3d(4, 4, (1, 3, 3), padding=(0, 1, 1)), function

    def forward(self, x: Any) -> Any:
        return self.function(self.conv(x)) * 2


@pytest.mark.parametrize("what", ALONG)
def test_what_is_whole_on_every_rank_is_not_split(what: str) -> None:
    function, needed = ALONG[what]
    for grid in GRIDS:
        if any(grid.axes[axis] > 1 for axis in needed):
            continue
        report = verify(Along(function), SHAPE, grid)
        assert report.passed, report


@pytest.mark.parametrize(
    "what", [what for what, (_, needed) in ALONG.items() if needed and "transposed" not in what]
)
def test_what_is_split_is_refused_or_equal(what: str) -> None:
    function, needed = ALONG[what]
    for grid in (GridShape(depth=2), GridShape(height=2), GridShape(width=2)):
        if any(grid.axes[axis] > 1 for axis in needed):
            try:
                report = verify(Along(function), SHAPE, grid)
            except UnsupportedError:
                continue
            assert report.passed, report


def video(x: Any) -> Any:
    """The images of a batch as the frames of a video: (1, C, T, H, W)."""
    return x[None].transpose(1, 2)


# Norms and what else counts cells, of images with a dim besides (N, C) that is not split.
COUNTED: dict[str, Function] = {
    "instance norm of groups": lambda x: F.instance_norm(x.view(8, 2, 2, 6, 8)),
    "instance norm": lambda x: F.instance_norm(video(x)),
    "group norm": lambda x: F.group_norm(video(x), 2),
    "batch norm": lambda x: F.batch_norm(video(x), None, None, training=True),
    "layer norm": lambda x: F.layer_norm(video(x), (8, 6, 8)) * F.layer_norm(video(x), (6, 8)),
    "pooled to one": lambda x: F.adaptive_avg_pool3d(video(x), 1),
    "the largest": lambda x: F.adaptive_max_pool3d(video(x), 1),
    "adapted": lambda x: F.adaptive_avg_pool3d(video(x), (3, 4, 2)),
    "pooled": lambda x: F.avg_pool3d(video(x), 3, 2, 1).sum() * F.max_pool3d(video(x), 2),
    "convolved": lambda x: F.conv3d(video(x), normal(2, 4, 3, 3, 3), padding=1),
    "resized": lambda x: F.interpolate(video(x), size=(3, 7, 5), mode="trilinear"),
    "mean": lambda x: video(x).mean((2, 3, 4)) * x.mean() * video(x).mean((0, 3, 4)).sum(),
    "variance": lambda x: video(x).var((2, 3, 4)) * video(x).std((3, 4)).sum() * x.std(),
    "norm": lambda x: torch.linalg.vector_norm(video(x), 2, (2, 3, 4)) * video(x).norm(),
    "extremes": lambda x: video(x).amax((2, 3, 4)) * video(x).min() + video(x).amin((3, 4)).sum(),
    "normalized": lambda x: F.normalize(video(x), dim=2) * video(x).softmax(2),
    "mse": lambda x: F.mse_loss(video(x), video(x).sin().detach()),
    "cross entropy": lambda x: F.cross_entropy(
        video(x), torch.arange(8 * 6 * 8).view(1, 8, 6, 8) % 4
    ),
    "prelu": lambda x: F.prelu(x[None], torch.rand(8).double()),
    "dropout of channels": lambda x: F.dropout3d(video(x), 0.5),
}


class Counted(nn.Module):
    """A function of the images that a layer makes, and running statistics of them as a video."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.function = nn.Conv2d(4, 4, 3, padding=1), function
        self.norm = nn.BatchNorm3d(4)

    def forward(self, x: Any) -> Any:
        x = self.conv(x)
        return self.function(x), self.norm(video(x))


@pytest.mark.parametrize("what", COUNTED)
def test_every_cell_of_dims_that_are_not_split_counts(what: str) -> None:
    for grid in (GridShape(height=2), GridShape(height=2, width=3)):
        report = verify(Counted(COUNTED[what]), (8, 4, 6, 8), grid)
        assert report.passed, report
        assert "buffer norm.running_var" in {d.name for d in report.differences}


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(6), nn.GroupNorm(2, 6), nn.InstanceNorm2d(6)])
def test_split_channels_are_refused(layer: nn.Module) -> None:
    def rank(grid: ProcessGrid) -> str:
        with pytest.raises(UnsupportedError, match="permute it first") as caught:
            layer(scatter(normal(2, 4, 6, 8), grid).permute(0, 2, 1, 3))
        return str(caught.value)

    assert len(set(on_grid((1, 2, 1), rank))) == 1


def test_a_change_in_place_of_a_whole_dims_view_changes_the_tensor() -> None:
    whole = normal(1, 2, 3, 4)
    expected = whole.clone()
    expected[..., 1].mul_(2)

    def rank(grid: ProcessGrid) -> Tensor:
        x = scatter(whole, grid)
        x[..., 1].mul_(2)
        return gather(x)

    for found in on_grid((1, 2, 1), rank):
        assert torch.equal(found, expected)


LAYERS: dict[str, Function] = {
    "replicated": lambda x: nn.ReplicationPad3d((0, 1, 2, 0, 2, 0))(x),
    "reflected": lambda x: nn.ReflectionPad3d(1)(x),
    "wrapped": lambda x: F.pad(x, (1, 1, 1, 1, 0, 0), "circular"),
    "zeros": lambda x: F.pad(x, (1, 0, 1, 0, 1, 0)),
    "nearest": lambda x: F.interpolate(x, scale_factor=2.0),
    "trilinear": lambda x: F.interpolate(x, size=(3, 5, 7), mode="trilinear"),
    "pooled": lambda x: F.max_pool3d(F.avg_pool3d(x, 3, 1, 1), 2),
    "adapted": lambda x: F.adaptive_avg_pool3d(x, (2, 3, 2)),
    "convolved": lambda x: F.conv3d(x, normal(3, 4, 3, 3, 3), padding=1),
    "transposed": lambda x: F.conv_transpose3d(x, normal(4, 3, 2, 2, 2), stride=2),
    "sliced": lambda x: x[..., 1:, 1:],
    "group norm": lambda x: F.group_norm(x, 2),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "activated": lambda x: F.silu(x) * x.sigmoid(),
}


@pytest.mark.parametrize("what", LAYERS)
def test_layers_keep_channels_last_where_torch_does(what: str) -> None:
    x = normal(1, 4, 5, 9, 10).to(memory_format=torch.channels_last_3d)

    def is_last(y: Tensor) -> bool:
        return bool(y.is_contiguous(memory_format=torch.channels_last_3d))

    kept = on_grid((1, 2, 2), lambda grid: is_last(LAYERS[what](scatter(x, grid)).local))
    assert set(kept) == {True} or not is_last(LAYERS[what](x))
