"""CosmoFlow's nine published figures, and that its procedural cubes tell the truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from cosmoflow.data import Universes, growth, spectrum
from cosmoflow.model import WIDTHS, CosmoFlow
from hvd_ext.errors import UsageError

EVERYTHING = (slice(None),) * 5


@pytest.mark.parametrize("width", WIDTHS)
def test_parameters_are_the_same_at_every_width(width: int) -> None:
    with torch.device("meta"):
        model = CosmoFlow(width)
        assert model.features(torch.empty(1, 4, *(width,) * 3)).shape == (1, 256, 2, 2, 2)
    assert sum(p.numel() for p in model.features.parameters()) == 4_715_712
    assert sum(p.numel() for p in model.head.parameters()) == 4_721_924


@pytest.mark.parametrize(
    ("width", "gflop", "gib"),
    [(128, 55.547, 0.8236), (256, 443.78, 6.5888), (512, 3550.27, 52.710)],
)
def test_published_figures(width: int, gflop: float, gib: float) -> None:
    """Oyama et al., table 2: three times the forward convolutions; values and gradients in fp32."""
    flops = 0
    numbers = 2 * 4 * width**3

    def count(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        nonlocal flops, numbers
        numbers += output.numel()
        if isinstance(module, nn.Conv3d):
            flops += 2 * output.numel() * module.weight[0].numel()

    with torch.device("meta"):
        model = CosmoFlow(width)
        for module in model.features:
            module.register_forward_hook(count)
        model(torch.empty(1, 4, *(width,) * 3))
    assert 3 * flops / 1e9 == pytest.approx(gflop, rel=1e-5)
    assert 2 * 4 * numbers / 2**30 == pytest.approx(gib, rel=1e-4)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 2) == 9.44


def test_start() -> None:
    model = CosmoFlow(32, thin=4)
    first = model.head[1]
    assert isinstance(first, nn.Linear)
    assert first.bias.eq(0.1).all()
    assert first.weight.abs().max() <= (6 / sum(first.weight.shape)) ** 0.5


def test_unknown_sizes_are_refused() -> None:
    with pytest.raises(UsageError, match="width 48 is not one of 32, 64, 128, 256, 512"):
        CosmoFlow(48)
    with pytest.raises(UsageError, match="thin 3 does not divide 16"):
        CosmoFlow(32, thin=3)


def test_a_cube_has_the_spectrum_of_its_parameters() -> None:
    universes = Universes(samples=2, width=32, seed=3)
    amplitude, tilt, cutoff, late = universes.parameters(1)
    cube = universes.cubes[EVERYTHING][1]
    power = np.abs(np.fft.fftn(cube[0]) / 32**3) ** 2
    frequencies = np.fft.fftfreq(32, 1 / 32)
    k = np.sqrt(sum(np.square(f) for f in np.meshgrid(*[frequencies] * 3, indexing="ij")))
    # A wave of amplitude a has a^2 / 4 at +k and at -k.
    expected = spectrum(np.geomspace(1, 8, 96), amplitude, tilt, cutoff * np.log(2), 32)
    assert power.sum() == pytest.approx(expected.sum() / 2, rel=0.2)
    assert power[k > 9].sum() < 1e-6 * power.sum()
    np.testing.assert_allclose(cube[3], cube[0] * growth(late)[3], rtol=1e-5)


def test_a_block_is_a_piece_of_the_whole() -> None:
    universes = Universes(samples=3, width=32, seed=1)
    whole = universes.cubes[EVERYTHING]
    block = universes.cubes[1:3, :, 4:9, :, 31:32]
    np.testing.assert_allclose(block, whole[1:3, :, 4:9, :, 31:32], atol=1e-5)
    assert universes.cubes[0:1, :, 8:8, :, :].shape == (1, 4, 0, 32, 32)
    assert np.array_equal(universes.labels[1:2, :], universes.parameters(1)[None].astype("f4"))
    with pytest.raises(TypeError, match="not a slice of step 1"):
        universes.cubes[::2, :, :, :, :]


@pytest.mark.long
def test_it_can_be_learnt() -> None:
    """The growth shows first: it is the ratio of two channels."""
    universes = Universes(samples=300, width=32, seed=1)
    torch.manual_seed(0)
    model = CosmoFlow(32, thin=4)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    late: list[float] = []
    for step in range(75):
        index = slice(4 * step, 4 * step + 4)
        cubes = torch.from_numpy(universes.cubes[(index, *(slice(None),) * 4)])
        error = (model(cubes) - torch.from_numpy(universes.labels[index, :])) ** 2
        optimizer.zero_grad()
        error.mean().backward()
        optimizer.step()
        late.append(error[:, 3].mean().item())
    # A constant guess has 1/3, the variance of a uniform number in -1..1.
    assert np.mean(late[-25:]) < 0.2, np.mean(late[-25:])
