"""What is not exact is refused, with the same reason on all ranks."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from hvd_ext.errors import UsageError
from hvd_ext.spatial import (
    ProcessGrid,
    SpatialTensor,
    UnsupportedError,
    gather,
    scatter,
    unsupported,
)
from hvd_ext.spatial.exchange import emulator
from hvd_ext.spatial.exchange.communicator import Communicator
from tests.support.spatial.on_grids import on_grid

REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "sort": (lambda x: torch.sort(x), "torch.sort"),
    "method": (lambda x: x.renorm(2, 1, 1.0), "renorm"),
    "transpose": (lambda x: x.transpose(2, 3), "transpose"),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), "bicubic"),
    "softmax over space": (lambda x: x.softmax(3), "dim 3"),
    "index": (lambda x: x[:, :, 0], "x["),
    "cat over space": (lambda x: torch.cat([x, x], 2), "dim 2"),
    "mean over one": (lambda x: x.mean(3), "dims [3]"),
    "flipped in two dims": (lambda x: x.flip(1, 2), "along dim 2"),
    "transform over space": (lambda x: torch.fft.rfft2(x), "along dim -2"),
    "unequal": (lambda x: x + F.avg_pool2d(x, 2), "same"),
    "channels": (lambda x: F.conv2d(x, torch.ones(1, 3, 1, 1)), "conv2d"),
    "kernel too large": (lambda x: F.conv2d(x, torch.ones(1, 2, 9, 9)), "conv2d"),
    "dims": (lambda x: F.conv1d(x, torch.ones(1, 2, 1)), "conv1d"),
    "reflect": (lambda x: F.pad(x, (7, 0, 0, 0), "reflect"), "(7, 0)"),
    "cropped and wrapped": (lambda x: F.pad(x, (-1, 2, 0, 0), "circular"), "(-1, 2)"),
    "cropped too far": (lambda x: F.pad(x, (-9, 5)), "pad"),
    "cat over no dim": (lambda x: torch.cat([x, x], 5), "dim 5"),
    "chunk over no dim": (lambda x: x.chunk(2, 5), "dim 5"),
    "softmax over no dim": (lambda x: x.softmax(4), "dim 4"),
    "unsqueeze at no dim": (lambda x: x.unsqueeze(6), "at dim 6"),
    "sum over no dim": (lambda x: x.sum(dim=5), "got 5"),
    "sum over one twice": (lambda x: x.sum((1, 1)), "sum"),
    "too many indices": (lambda x: x[:, :, :, :, :], "x["),
    "a mask for an index": (lambda x: x[x > 0], "x["),
    "mean of whole numbers": (lambda x: x.long().mean(), "int64"),
    "average of whole numbers": (lambda x: F.avg_pool2d(x.long(), 2), "int64"),
    "linear of whole numbers": (lambda x: F.interpolate(x.long(), 9, mode="bilinear"), "int64"),
    "nearest, by size": (lambda x: F.interpolate(x, scale_factor=1.1), "nearest"),
    "nearest with corners": (lambda x: F.interpolate(x, 9, align_corners=True), "align_corners"),
    "into a whole one": (lambda x: torch.ones(1, 2, 6, 7).add_(x), "replicated"),
    "in place": (lambda x: operator.iadd(torch.ones(1, 2, 6, 7), x), "replicated"),
    "out": (lambda x: torch.add(x, 1, out=torch.ones(1, 2, 6, 7)), "replicated"),
    "out of a sum": (lambda x: torch.sum(x, 1, out=torch.ones(1, 6, 7)), "out"),
    "where alone": (lambda x: torch.where(x > 0), "where"),
    "view": (lambda x: x.view(1, 3, 6, 7), "[1, 3, 6, 7]"),
    "stride": (lambda x: F.conv2d(x, torch.ones(1, 2, 1, 1), stride=0), "(0,)"),
    "padding": (lambda x: F.conv_transpose2d(x, torch.ones(2, 1, 1, 1), padding=-1), "(-1,)"),
    "transposed to nothing": (
        lambda x: F.conv_transpose2d(x, torch.ones(2, 1, 1, 1), padding=(3, 0)),
        "(0, 7)",
    ),
    "more than a stride": (
        lambda x: F.conv_transpose2d(x, torch.ones(2, 1, 1, 1), output_padding=1),
        "padding=",
    ),
    "scattered twice": (lambda x: scatter(x, x.grid), "split already"),
    "gathered twice": (lambda x: gather(gather(x)), "not split"),
    "an operand that is whole": (lambda x: F.conv2d(torch.ones(1, 2, 6, 7), x), "(1, 2, 6, 7)"),
    "weight": (lambda x: F.conv2d(x, torch.ones(1, 2, 1, 1).double()), "float64"),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, torch.ones(3), training=True), "(3,)"),
    "statistics": (lambda x: F.batch_norm(x, *torch.ones(2, 2).double()), "float64"),
    "instance_norm": (lambda x: F.instance_norm(x, use_input_stats=False), "use_input_stats"),
    "weights of a loss": (lambda x: F.mse_loss(x, x, weight=torch.ones(1)), "(1,)"),
    "groups": (lambda x: F.group_norm(x, 3), "3 groups"),
    "layer_norm": (lambda x: F.layer_norm(x, (7,)), "(7,)"),
    "lp_pool": (lambda x: F.lp_pool2d(x, 2, 2), "lp_pool"),
    "numpy": (lambda x: x.numpy(), "numpy"),
    "shape of a replicated one": (lambda x: x * torch.ones(6, 3), "(6, 3)"),
    "loss of other shape": (lambda x: F.mse_loss(x, torch.ones(1)), "mse_loss"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_exact_is_refused_by_all_ranks(what: str) -> None:
    operation, words = REFUSED[what]
    x = torch.ones(1, 2, 6, 7)

    def rank(grid: ProcessGrid) -> str:
        with unsupported.layer("features.3"):
            try:
                operation(scatter(x, grid))
            except UnsupportedError as error:
                return str(error)
            except ValueError as error:  # torch's own, before anything is sent
                return f"layer 'features.3': {error}"
        return "it was not refused"

    # One rank has no cells, and no kernel of torch's that could complain.
    sentences = set(on_grid((1, 7, 2), rank))
    assert len(sentences) == 1, sentences
    sentence = sentences.pop()
    assert words in sentence
    assert sentence.startswith("layer 'features.3': ")
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda comm: ProcessGrid(width=3, comm=comm), "3 ranks"),
        (lambda comm: ProcessGrid(width=0, comm=comm), "width=0"),
        (lambda comm: ProcessGrid(height=-2, comm=comm), "height=-2"),
        (lambda comm: scatter(torch.ones(1, 1, 4), ProcessGrid(height=2, comm=comm)), "height=2"),
        (lambda comm: scatter(torch.ones(4), ProcessGrid(width=2, comm=comm)), "(4,)"),
        (
            lambda comm: SpatialTensor(torch.ones(1, 1, 3), ProcessGrid(width=2, comm=comm), (4,)),
            "(1, 1, 3)",
        ),
    ],
)
def test_a_grid_that_cannot_be(make: Callable[[Communicator], Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        emulator.run(2, make)
    assert words in str(caught.value)


def test_tensors_of_different_grids_do_not_meet() -> None:
    """The same cuts, other ranks."""

    def rank(comm: Communicator) -> None:
        x = torch.arange(8.0).view(1, 1, 8)
        here = scatter(x, ProcessGrid(width=2, comm=comm))
        there = scatter(x, ProcessGrid(width=2, comm=comm.group([1, 0])))
        for operation in (torch.add, F.mse_loss, lambda *both: torch.cat(both, 1)):
            with pytest.raises(UnsupportedError, match="grid"):
                operation(here, there)

    emulator.run(2, rank)


def test_reentrant_checkpoints_are_no_silent_loss() -> None:
    def rank(grid: ProcessGrid) -> None:
        layer = nn.Conv1d(1, 1, 3, padding=1)
        checkpoint(layer, scatter(torch.ones(1, 1, 6), grid), use_reentrant=True)

    with pytest.raises(UnsupportedError, match="use_reentrant=False"):
        on_grid((1, 1, 2), rank)
