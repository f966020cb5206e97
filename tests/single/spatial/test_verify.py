"""verify: no false alarm where the unsplit model itself is noise, and nothing wrong is passed."""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hvd_ext.spatial import GridShape, SpatialTensor, verify

GRIDS = [GridShape(height=2), GridShape(width=3), GridShape(height=2, width=2)]
SHAPE = (2, 3, 11, 13)


def biased(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), *layers, nn.Conv2d(4, 2, 3))


class StochasticDepth(nn.Module):
    """As torchvision has it: whole samples are dropped."""

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.empty([x.shape[0], *[1] * (x.ndim - 1)], dtype=x.dtype).bernoulli_(0.5)
        return x * kept.div_(0.5)


class DropPath(nn.Module):
    """As timm has it."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(0.5)


class ByPython(nn.Module):
    """Layers that Python's and numpy's random numbers switch off, as many a detector's."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(20):
            x = x * random.uniform(0.5, 2) + np.random.rand() * np.random.choice([-1.0, 1.0])
        return x


class Noisy(nn.Module):
    """Noise for every cell."""

    def forward(self, x: Tensor) -> Tensor:
        last = x.permute(0, 2, 3, 1)
        return x + torch.randn_like(x) * torch.rand_like(last).permute(0, 3, 1, 2)


class Functional(nn.Module):
    """Dropout that no module stands for."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout2d(F.dropout(x, 0.5, self.training, inplace=True), 0.5)


# Gradients of biases are zero but for rounding; running means are, behind another norm.
NOISY: dict[str, nn.Module] = {
    "bias before a batch norm": biased(nn.BatchNorm2d(4), nn.ReLU()),
    "bias before an instance norm": biased(nn.InstanceNorm2d(4, affine=True), nn.LeakyReLU()),
    "bias before a group norm": biased(nn.GroupNorm(4, 4), nn.ReLU()),
    "a norm before a norm": biased(nn.BatchNorm2d(4, affine=False), nn.BatchNorm2d(4)),
    "many of them": biased(*[nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))] * 6),
}
RANDOM: dict[str, tuple[nn.Module, str]] = {
    "dropout": (biased(nn.Dropout(0.5), nn.Dropout2d(0.5)), "dropout was off"),
    "alpha dropout": (biased(nn.AlphaDropout(0.5), nn.FeatureAlphaDropout()), "dropout was off"),
    "functional dropout": (biased(Functional()), "dropout was off"),
    "stochastic depth": (biased(StochasticDepth()), "random layers drew alike"),
    "Python's and numpy's": (biased(ByPython()), "random layers drew alike"),
    "noise": (biased(Noisy()), "random layers drew alike"),
    "drop path": (biased(DropPath(), DropPath()), "random layers drew alike"),
}


@pytest.mark.parametrize("grid", [GridShape(), *GRIDS], ids=str)
@pytest.mark.parametrize("what", NOISY)
def test_noise_is_no_difference(what: str, grid: GridShape) -> None:
    report = verify(NOISY[what], SHAPE, grid)
    assert report.passed, report


@pytest.mark.parametrize("what", RANDOM)
def test_random_layers_are_made_to_agree_and_named(what: str) -> None:
    model, note = RANDOM[what]
    report = verify(model, SHAPE, GridShape(height=2, width=2))
    assert report.passed, report
    assert report.notes == (note,)
    assert note in str(report)
    assert verify(model.eval(), SHAPE, GridShape(width=2)).passed


def test_random_numbers_of_others_stay_as_they_were() -> None:
    functions = random.random, np.random.rand
    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.rand()
    random.seed(5)
    np.random.seed(5)
    verify(RANDOM["Python's and numpy's"][0], SHAPE, GridShape(height=2))
    assert (random.random, np.random.rand) == functions
    assert (random.random(), np.random.rand()) == expected


@dataclass
class Segmented:
    """An output of several tensors."""

    masks: Tensor
    classes: Tensor


class Several(nn.Module):
    """Outputs of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Any) -> Any:
        y = self.conv(x)
        auxiliary = [y.relu(), (y.mean((2, 3)), None)]
        labels = (y > 0).long()
        return OrderedDict(out=y, aux=auxiliary, found=Segmented(y * 2, y.mean()), labels=labels)


def test_outputs_of_several_tensors() -> None:
    report = verify(Several(), SHAPE, GridShape(height=2))
    assert report.passed, report
    names = {difference.name for difference in report.differences}
    assert names >= {
        *("output['out']", "output['aux'][0]", "output['aux'][1][0]", "output['labels']"),
        *("output['found'].masks", "output['found'].classes"),
    }


class Narrow(nn.Module):
    """A model that computes partly in a narrower dtype; wrong on one rank, if that is asked for."""

    def __init__(self, dtype: torch.dtype, error: float = 0.0) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.narrow, self.error = dtype, error

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        weight = y.to(self.narrow).mean((2, 3), keepdim=True).to(y.dtype)
        if isinstance(y, SpatialTensor) and y.box[0][0] == 0:
            weight = weight * (1 + self.error)
        return self.last(y * weight.sigmoid())


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float32, 1e-4), (torch.bfloat16, 1.0), (torch.float64, 1e-8)]
)
def test_a_cast_within_a_model_is_no_difference_and_hides_none(
    dtype: torch.dtype, error: float
) -> None:
    torch.manual_seed(0)
    for grid in GRIDS:
        report = verify(Narrow(dtype), SHAPE, grid)
        assert report.passed, report
    assert not verify(Narrow(dtype, error), SHAPE, GridShape(height=2)).passed


class Centered(nn.Module):
    """Gradients of a bias that are rounding alone, and do not depend on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Any) -> Any:
        y = self.conv(x)
        return y - y.mean((2, 3), keepdim=True)


def test_gradients_that_are_rounding_alone_are_no_difference() -> None:
    torch.manual_seed(0)
    for grid in GRIDS:
        report = verify(Centered(), SHAPE, grid)
        assert report.passed, report


class OneCell(nn.Module):
    """Wrong by one cell on one rank, by a millionth."""

    def __init__(self, backward: bool) -> None:
        super().__init__()
        self.backward = backward

    def forward(self, x: Any) -> Any:
        if not isinstance(x, SpatialTensor) or any(begin for begin, _ in x.box):
            return x
        wrong = torch.zeros_like(x.local)
        # The largest is alive behind any activation.
        wrong.view(-1)[x.local.detach().reshape(-1).argmax()] = 1e-6
        if self.backward:
            return x.like(x.local + (x.local - x.local.detach()) * wrong)
        return x.like(x.local + wrong)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("what", NOISY)
def test_one_wrong_cell_is_found_amid_the_noise(what: str, backward: bool) -> None:
    model = nn.Sequential(*NOISY[what][:-1], OneCell(backward), NOISY[what][-1])
    report = verify(model, SHAPE, GridShape(height=2, width=2))
    assert not report.passed, report


def test_another_number_of_outputs_is_a_difference() -> None:
    class Fewer(nn.Module):
        def forward(self, x: Any) -> Any:
            return [x] if isinstance(x, SpatialTensor) else [x, x]

    report = verify(Fewer(), SHAPE, GridShape(height=2))
    assert not report.passed
    assert "output[1]: inf" in str(report)
