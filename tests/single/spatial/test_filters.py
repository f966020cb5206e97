"""Layers whose filters ranks share, on ranks emulated in this process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

import torch
from torch import Tensor, nn

from hvd_ext import spatial
from hvd_ext.errors import UsageError
from hvd_ext.spatial import GridShape, ProcessGrid
from hvd_ext.spatial.exchange import emulator, replicated
from hvd_ext.spatial.exchange.communicator import Communicator
from hvd_ext.spatial.layers import filters
from hvd_ext.spatial.layers.filters import OwnParameter, layers_with_filters, whole_gradients
from tests.support.mutants import mutate
from tests.support.spatial.on_grids import normal

Axes = dict[str, int]
EVERY = ("0", "2", "5", "7", "9")
GRIDS: list[Axes] = [
    {"height": 2},
    {"width": 3},
    {"channels": 3},
    {"height": 2, "width": 2},
    {"height": 2, "channels": 2},
]


def network() -> nn.Sequential:
    """Filters that 2 and 3 ranks share unevenly, on split, on whole and on flat tensors."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.LeakyReLU(),
        nn.Conv2d(6, 5, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(5),
        nn.LeakyReLU(),
        nn.Conv2d(5, 7, 1),
        nn.Flatten(),
        nn.Linear(7 * 5 * 5, 9),
        nn.LeakyReLU(),
        nn.Linear(9, 4),
    ).double()


MODEL = network()
SAMPLES = [normal(2, 2, 9, 10, seed=seed) for seed in (1, 2)]


def on(axes: Axes, groups: int, work: Callable[[ProcessGrid], Any]) -> list[Any]:
    size = GridShape(**axes).size * groups
    return emulator.run(size, lambda comm: work(ProcessGrid(**axes, comm=comm)))


def check(axes: Axes, names: Sequence[str], groups: int = 2, **options: Any) -> None:
    """Losses, gradients and weights are those of the unsplit model, on every rank."""
    whole = copy.deepcopy(MODEL)
    losses = [whole(x).square().mean() for x in SAMPLES[:groups]]
    (sum(losses) / groups).backward()
    models = [copy.deepcopy(MODEL) for _ in range(groups * GridShape(**axes).size)]

    def work(grid: ProcessGrid) -> tuple[Tensor, dict[str, Tensor], int]:
        model = spatial.convert(models[grid.world.rank], grid, split_filters=names, **options)
        loss = model(SAMPLES[grid.sample_group]).square().mean()
        loss.backward()
        found: dict[str, Tensor] = {}
        for path, module in model.named_modules():
            for name, gradient in whole_gradients(module).items():
                if not isinstance(module._parameters[name], OwnParameter):
                    gradient = grid.world.allreduce(gradient) / grid.world.size
                found[f"{path}.{name}"] = gradient
        own = sum(p.numel() for p in model.parameters() if isinstance(p, OwnParameter))
        assert own or not names
        losses_of_group = torch.zeros(groups, dtype=torch.float64)
        losses_of_group[grid.sample_group] = loss.detach()
        return losses_of_group, found, own if grid.sample_group == 0 else 0

    ranks = on(axes, groups, work)
    for found_loss, found, _ in ranks:
        (group,) = found_loss.nonzero()[0]
        torch.testing.assert_close(found_loss[group], losses[group].detach(), rtol=1e-12, atol=0)
        for name, p in whole.named_parameters():
            assert p.grad is not None
            scale = max(p.grad.abs().max().item(), 1e-3)
            torch.testing.assert_close(found[name], p.grad, rtol=0, atol=1e-12 * scale)
    # No row is missing, none is on two ranks that share.
    shared = layers_with_filters(MODEL, 1)
    copies = GridShape(**axes).size // (axes.get("channels", 1)) if "channels" in axes else 1
    assert sum(own for _, _, own in ranks) == copies * sum(
        p.numel() for name in names for p in shared[name].parameters()
    )


@pytest.mark.parametrize("axes", GRIDS, ids=str)
@pytest.mark.parametrize("names", [("2", "7"), EVERY], ids=" ".join)
def test_shared_filters_compute_what_whole_ones_do(axes: Axes, names: Sequence[str]) -> None:
    check(axes, names)


@pytest.mark.parametrize("axes", GRIDS, ids=str)
def test_after_a_gather_too(axes: Axes) -> None:
    check(axes, ("5", "7", "9"), groups=1, gather_before=["5"])


def dropped_sum(patch: pytest.MonkeyPatch) -> None:
    """What other ranks' filters contribute to the gradient of the input is left out."""
    mutate(patch, filters, "_forward", "x = to_partitioned(x, shares)", "x = x")


def wrong_rows(patch: pytest.MonkeyPatch) -> None:
    """Every rank keeps the first filters."""
    mutate(patch, filters.Filters, "own", "[slice(*rows)]", "[: rows[1] - rows[0]]")


def wrong_place(patch: pytest.MonkeyPatch) -> None:
    """Outputs are put together in the order of the ranks, turned by one."""
    gather = filters.gather
    patch.setattr(filters, "gather", lambda x: gather(x).roll(1, dims=len(x.lead)))


def alone(patch: pytest.MonkeyPatch) -> None:
    """Ranks that have the same filters keep the gradients of their own samples."""
    patch.setattr(
        replicated.AverageGradient, "backward", staticmethod(lambda _, gradient: (None, gradient))
    )


@pytest.mark.parametrize("mistake", [dropped_sum, wrong_rows, wrong_place, alone])
def test_a_mutant_is_killed(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        check({"height": 2}, EVERY)


def test_verify_takes_them() -> None:
    shape = tuple(SAMPLES[0].shape)
    for grid in (GridShape(height=2), GridShape(height=2, channels=2)):
        report = spatial.verify(MODEL, shape, grid, split_filters=EVERY, gather_before=["7"])
        assert report.passed, report


def test_channels_last_linear_layers_stay_split() -> None:
    """As in ConvNeXt: permuted behind split dims, which are split again afterwards."""

    class Behind(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.linear = nn.Conv2d(2, 4, 3), nn.Linear(4, 6)

        def forward(self, x: Any) -> Any:
            return self.linear(self.first(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    model, shape = Behind(), (1, 2, 7, 8)
    for grid in (GridShape(height=2), GridShape(width=2, channels=2)):
        report = spatial.verify(model, shape, grid, split_filters=["linear"])
        assert report.passed, report


def test_checkpoints_are_whole_both_ways() -> None:
    plain, other = copy.deepcopy(MODEL), network()
    nn.init.ones_(other[7].bias)
    models = [copy.deepcopy(MODEL) for _ in range(3)]
    for model in models[1:]:
        nn.init.zeros_(model[7].weight)

    def work(comm: Communicator) -> list[Any]:
        grid = ProcessGrid(width=3, comm=comm)
        model = spatial.convert(models[comm.rank], grid, split_filters=["5", "7"])
        assert model[7].weight.shape == (3, 7 * 5 * 5)
        # All ranks have the first one's weights.
        first = dict(model.state_dict())
        model.load_state_dict(other.state_dict())
        with pytest.raises(UsageError, match="assign=True"):
            model.load_state_dict(other.state_dict(), assign=True)
        twin = copy.deepcopy(model)
        nn.init.zeros_(twin[9].weight)
        nn.init.zeros_(twin[9].bias)
        nn.init.zeros_(twin[7].bias)
        return [first, dict(model.state_dict()), twin(SAMPLES[0]), model(SAMPLES[0])]

    for first, loaded, nothing, output in emulator.run(3, work):
        assert list(first) == list(plain.state_dict())
        torch.testing.assert_close(first["7.weight"], plain[7].weight.detach(), rtol=0, atol=0)
        torch.testing.assert_close(loaded, dict(other.state_dict()), rtol=0, atol=0)
        assert not nothing.any()
        torch.testing.assert_close(output, other(SAMPLES[0]).detach(), rtol=0, atol=1e-12)


def test_what_cannot_be_shared_is_refused_or_left_whole() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.few, self.grouped = nn.Linear(8, 1), nn.Conv2d(4, 4, 1, groups=2)
            self.one, self.same = nn.Linear(4, 4), nn.Linear(4, 4)
            self.same.weight = self.one.weight
            self.attention = nn.MultiheadAttention(4, 2)
            self.good = nn.Sequential(nn.Linear(4, 2), nn.Conv1d(2, 3, 1))

    assert list(layers_with_filters(Odd(), 2)) == ["good.0", "good.1"]

    def work(comm: Communicator) -> None:
        grid = ProcessGrid(width=2, comm=comm)
        for name in ("few", "grouped", "one", "attention", "nobody"):
            with pytest.raises(UsageError, match=f"'{name}' in split_filters has no layer"):
                spatial.convert(Odd(), grid, split_filters=[name])

    emulator.run(2, work)
