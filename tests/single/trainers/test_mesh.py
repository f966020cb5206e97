"""The mesh model's published size, and that its procedural data tells the truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from hvd_ext.errors import UsageError
from mesh.data import THRESHOLD, Meshes
from mesh.model import PRESETS, MeshModel, mesh_model

EVERYTHING = (slice(None),) * 4


@pytest.mark.parametrize(
    ("preset", "convolutions", "norms", "gflop"),
    [("2k", 12_378_368, 9_216, 1895), ("1k", 34_398_464, 20_224, 2365)],
)
def test_published_counts(preset: str, convolutions: int, norms: int, gflop: int) -> None:
    side = PRESETS[preset][0]
    with torch.device("meta"):
        model = mesh_model(preset)
        flops = 0

        def count(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
            nonlocal flops
            assert isinstance(module, nn.Conv2d)
            flops += 2 * output.numel() * module.weight[0].numel()

        sizes = {nn.Conv2d: 0, nn.BatchNorm2d: 0}
        for module in model.modules():
            if type(module) in sizes:
                sizes[type(module)] += sum(p.numel() for p in module.parameters())
            if isinstance(module, nn.Conv2d):
                module.register_forward_hook(count)
        output = model(torch.empty(1, 18, side, side))
    assert list(sizes.values()) == [convolutions, norms]
    assert round(flops / 1e9) == gflop
    assert output.shape == (1, 1, side, side)


def test_order_of_layers() -> None:
    names = [name for name, _ in mesh_model("small").named_children()]
    assert names[:4] == ["conv1_1", "relu1_1", "bn1_1", "conv1_2"]
    assert names[-3:] == ["prediction", "output", "sigmoid"]
    first, second, third = (
        mesh_model("1k").get_submodule(f"conv{n}") for n in ("1_1", "1_2", "6_1")
    )
    assert [(c.kernel_size[0], c.stride[0], c.padding[0]) for c in (first, second, third)] == [
        (5, 2, 2),
        (3, 1, 1),
        (3, 1, 1),
    ]


def test_pixel_shuffle_keeps_predictions_where_they_were_made() -> None:
    x = torch.zeros(1, 16, 2, 2)
    x[0, :, 1, 0] = 1
    shuffled, reshaped = (mesh_model("small", output).output(x)[0, 0] for output in MODES)
    assert shuffled[4:, :4].eq(1).all()
    assert shuffled.sum() == 16
    assert not reshaped.equal(shuffled)


MODES = ("pixel_shuffle", "reshape")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match="preset '4k' is not one of 2k, 1k, small"):
        mesh_model("4k")
    with pytest.raises(UsageError, match="output 'sum' is not pixel_shuffle or reshape"):
        mesh_model("small", "sum")


def test_the_mask_is_where_cells_lose_their_area() -> None:
    """Against the areas of the moved cells, as the shoelace formula gives them."""
    meshes = Meshes(samples=3, size=256, seed=5)
    v, u = (wave.at([(0, 257), (0, 257)]) for wave in meshes.displacement(2))
    y, x = np.mgrid[0:257, 0:257] + np.stack([v, u])
    diagonal = (x[1:, 1:] - x[:-1, :-1], y[1:, 1:] - y[:-1, :-1])
    other = (x[1:, :-1] - x[:-1, 1:], y[1:, :-1] - y[:-1, 1:])
    area = (diagonal[1] * other[0] - diagonal[0] * other[1]) / -2
    mask = meshes.masks[2:3, :, :, :][0, 0] == 1
    assert np.mean((area < THRESHOLD) == mask) > 0.97
    assert 0.1 < mask.mean() < 0.5


def test_a_block_is_a_piece_of_the_whole() -> None:
    meshes = Meshes(samples=4, size=64, seed=1)
    for source, channels in ((meshes.inputs, 18), (meshes.masks, 1)):
        whole = source[EVERYTHING]
        assert whole.shape == (4, channels, 64, 64)
        block = source[1:3, :, 5:20, 60:64]
        np.testing.assert_allclose(block, whole[1:3, :, 5:20, 60:64], atol=1e-6)
        assert source[1:2, :, 3:3, :].shape == (1, channels, 0, 64)


def test_it_can_be_learnt() -> None:
    meshes = Meshes(samples=120, size=64, seed=1)
    torch.manual_seed(0)
    model: MeshModel = mesh_model("small")
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(40):
        index = (slice(3 * step, 3 * step + 3), *(slice(None),) * 3)
        x, mask = torch.from_numpy(meshes.inputs[index]), torch.from_numpy(meshes.masks[index])
        loss = nn.functional.mse_loss(model(x), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    guess = mask.mean() * (1 - mask.mean())
    assert loss < 0.75 * guess, "worse than a constant guess"
