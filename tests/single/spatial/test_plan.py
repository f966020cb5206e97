"""plan against what can be worked out by hand."""

from __future__ import annotations

import contextlib
import io
import re

import pytest
import torch
from torch import nn

from cosmoflow.model import CosmoFlow
from hvd_ext import spatial
from hvd_ext.errors import UsageError
from hvd_ext.spatial import GridShape, ProcessGrid, Speeds
from hvd_ext.spatial.exchange import emulator
from hvd_ext.spatial.exchange.communicator import Communicator
from hvd_ext.spatial.exchange.device import gpu
from hvd_ext.spatial.layers.windows import ways
from hvd_ext.spatial.tools.plan import grids
from testbed.ranks import ROOT

SPEEDS = Speeds(flops_per_s=1e12, bytes_per_s=1e10, latency_s=1e-6)


def test_halo_bytes_are_planes_of_the_cube() -> None:
    with torch.device("meta"):
        model = CosmoFlow(512)
    plan = spatial.plan(model, (1, 4, 512, 512, 512), GridShape(depth=4), speeds=SPEEDS)
    first = next(layer for layer in plan.layers if layer.name == "features.0")
    plane = 4 * 4 * 512 * 512
    assert first.sent_bytes == (plane, 2 * plane, plane)
    assert plan.ranks == (0, 2, 3)
    assert first.shape == (1, 16, 512, 512, 512)
    assert set(first.local_shapes) == {(1, 16, 128, 512, 512)}


@pytest.mark.parametrize("grid", [GridShape(), GridShape(depth=2, height=2, width=2)])
def test_flops_are_shared_out_whole(grid: GridShape) -> None:
    with torch.device("meta"):
        model = CosmoFlow(128)
    plan = spatial.plan(
        model, (1, 4, 128, 128, 128), grid, speeds=SPEEDS, gather_before=(), split_filters=()
    )
    convolutions = [layer for layer in plan.layers if layer.kind == "Conv3d"]
    assert len(convolutions) == 7
    # The published figure, and what the rims of large shards are computed twice.
    twice = 3 * sum(sum(layer.flops) for layer in convolutions) / 1e9 / 55.547
    assert 1 - 1e-4 < twice < (1.05 if grid.size > 1 else 1 + 1e-4)
    assert all(layer.imbalance == pytest.approx(1.0) for layer in convolutions)
    linear = [layer for layer in plan.layers if layer.kind == "Linear"]
    assert not any(layer.partitioned for layer in linear)
    assert plan.parameter_bytes == 4 * 9_437_636


def test_memory_is_what_training_keeps() -> None:
    """Each layer keeps its input; a pool may keep as much as its output besides."""
    with torch.device("meta"):
        model = CosmoFlow(64).features
    shape = (1, 4, 64, 64, 64)
    whole, split = (
        spatial.plan(model, shape, grid, speeds=SPEEDS, gather_before=())
        for grid in (GridShape(), GridShape(depth=2))
    )
    kept = 0
    x = torch.empty(shape, device="meta")
    for layer in model:
        kept += x.nbytes
        x = layer(x)
    assert kept <= whole.activation_bytes < 1.1 * kept
    assert split.activation_bytes < 0.6 * whole.activation_bytes


def test_uneven_shards_show_as_imbalance() -> None:
    model = nn.Conv2d(1, 1, 1)
    plan = spatial.plan(model, (1, 1, 5, 8), GridShape(height=2), speeds=SPEEDS, gather_before=())
    assert plan.layers[-1].imbalance == pytest.approx(3 / 2.5)
    assert plan.layers[-1].local_shapes == ((1, 1, 2, 8), (1, 1, 3, 8))
    assert plan.layers[-1].sent_bytes == (0, 0)


def test_the_best_grid_has_the_shortest_borders() -> None:
    model = nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)))
    slow = Speeds(flops_per_s=1e15, bytes_per_s=1e8, latency_s=0.0)
    tall, square = (
        spatial.plan(model, (1, 8, *extents), ranks=4, speeds=slow, gather_before=()).grid
        for extents in ((4096, 64), (512, 512))
    )
    assert tall == GridShape(height=4)
    assert square == GridShape(height=2, width=2)
    assert grids(4, 2) == [GridShape(height=4), GridShape(height=2, width=2), GridShape(width=4)]
    assert len(grids(8, 3)) == 10


def test_small_layers_are_gathered_where_exchanging_costs_more() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1), nn.Conv2d(64, 64, 9, stride=32), *tiny(), *tiny()
    )
    late = Speeds(flops_per_s=1e10, bytes_per_s=1e10, latency_s=1e-3)
    plan = spatial.plan(model, (1, 1, 256, 256), GridShape(height=2), speeds=late)
    assert plan.gather_before == ("2",)
    assert "gather before 2" in str(plan)
    never = Speeds(flops_per_s=1e9, bytes_per_s=1e12, latency_s=0)
    plan = spatial.plan(model, (1, 1, 256, 256), GridShape(height=2), speeds=never)
    assert plan.gather_before == ()


def test_filters_are_shared_where_that_is_faster() -> None:
    """Gradients of 2 x 2 x 2 cells are sent at the cost of 37 MB; the outputs, of 8 KiB."""
    with torch.device("meta"):
        model = CosmoFlow(64)
    shape, grid = (1, 4, 64, 64, 64), GridShape(depth=2)
    plan = spatial.plan(model, shape, grid, speeds=SPEEDS)
    assert plan.split_filters[-4:] == ("features.14", "features.16", "head.1", "head.4")
    whole = spatial.plan(model, shape, grid, speeds=SPEEDS, split_filters=())
    assert plan.time_s < 0.6 * whole.time_s
    assert plan.parameter_bytes < 0.55 * whole.parameter_bytes
    linear = next(layer for layer in plan.layers if layer.name == "head.1")
    assert linear.flops == (2048 * 2048,) * 2
    assert linear.sent_bytes == (4 * 1024,) * 2
    assert linear.gradient_bytes == 0
    assert "features.0" not in plan.split_filters
    assert "share the filters of" in str(plan)
    assert not plan.whole_layers or plan.whole_layers[0].name == "head.7"
    slow = Speeds(flops_per_s=1e12, bytes_per_s=1e12, latency_s=1.0)
    assert spatial.plan(model, shape, grid, speeds=slow).split_filters == ()


def test_ranks_along_channels_share_filters() -> None:
    model = nn.Sequential(nn.Conv2d(64, 64, 1, bias=False), nn.ReLU(), nn.Conv2d(64, 64, 1))
    grid = GridShape(height=2, channels=2)
    shape, names = (1, 64, 8, 4), ["0"]
    plan = spatial.plan(model, shape, grid, speeds=SPEEDS, gather_before=(), split_filters=names)
    first, last = plan.layers[0], plan.layers[-1]
    assert (first.shares_filters, last.shares_filters) == (True, False)
    # The other half of the outputs comes from the rank that has the same cells.
    assert first.flops == (2 * 64 * 32 * 16,) * 4
    assert first.sent_bytes == (4 * 32 * 16,) * 4
    # Filters are averaged over the 2 ranks that have them.
    assert (first.parameter_bytes, first.gradient_bytes) == (4 * 64 * 32, 4 * 64 * 32)


def tiny() -> list[nn.Module]:
    return [nn.Conv2d(64, 64, 3, padding=1) for _ in range(4)]


def test_it_takes_a_grid_or_a_number() -> None:
    for arguments in ({}, {"grid": GridShape(), "ranks": 2}):
        with pytest.raises(UsageError, match="either a grid or a number of ranks"):
            spatial.plan(nn.Conv2d(1, 1, 1), (1, 1, 4, 4), speeds=SPEEDS, **arguments)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_numbers_that_a_model_reads_are_there(device: str) -> None:
    model = nn.BatchNorm2d(2, momentum=None, device=device)
    spatial.plan(model, (1, 2, 4, 4), GridShape(width=2), speeds=SPEEDS)
    assert model.num_batches_tracked.is_meta or model.num_batches_tracked == 0


def test_speeds_are_measured() -> None:
    speeds = spatial.measure_speeds()
    assert 1e7 < speeds.flops_per_s < 1e15
    assert speeds.bytes_per_s > 1e6


def two_convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(1, 1, 7))


def test_the_plan_says_which_layers_overlap_their_halos_by_rule() -> None:
    plan = spatial.plan(
        *(two_convolutions(), (1, 1, 32, 32), GridShape(height=2)), speeds=SPEEDS, gather_before=()
    )
    # The last convolution owns 5 rows a rank, of which 3 or fewer need no halo.
    found = {layer.name: layer.halos for layer in plan.layers if any(layer.halos)}
    assert found == {"0": ("overlapped", "overlapped"), "2": ("whole", "whole")}, found
    rows = {line.split()[0]: line for line in str(plan).splitlines()}
    assert " overlapped " in rows["0"]
    assert " whole " in rows["2"]


def test_the_plan_of_a_grid_on_gpus_says_what_they_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = (1, 1, 32, 32)

    def run(comm: Communicator) -> ProcessGrid:
        grid = ProcessGrid(height=2, comm=comm)
        spatial.convert(two_convolutions(), grid)(spatial.scatter(torch.zeros(shape), grid))
        return grid

    with monkeypatch.context() as patch:
        patch.setattr(gpu, "is_on_gpu", lambda tensor: True)
        # Each rank's own clock: the interior beneath the halo is slower.
        patch.setattr(ways, "_best_s", lambda local, run: 2.0 - ("whole" in run.__name__))
        grid, _ = emulator.run(2, run)
    plan = spatial.plan(two_convolutions(), shape, grid, speeds=SPEEDS, gather_before=())
    found = {layer.name: layer.halos[0] for layer in plan.layers if any(layer.halos)}
    assert found == {"0": "whole (measured)", "2": "whole (measured)"}, found
    # Another shape was not measured.
    plan = spatial.plan(two_convolutions(), (1, 1, 48, 32), grid, speeds=SPEEDS, gather_before=())
    assert next(layer.halos[0] for layer in plan.layers if layer.name == "0") == "overlapped"


def test_docs_show_what_plan_prints() -> None:
    """Its first and last lines; the page wraps the last and leaves out the rows between."""
    page = (ROOT / "docs" / "guides" / "spatial.md").read_text()
    match = re.search(r"```python\n([^`]*spatial\.plan\([^`]*)```\n```\n([^`]*)```", page)
    assert match is not None
    code, shown = match.groups()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {"torch": torch, "spatial": spatial, "CosmoFlow": CosmoFlow})
    first, last = (part.split() for part in shown.split("\n...\n"))
    words = printed.getvalue().split()
    assert words[: len(first)] == first
    assert words[-len(last) :] == last
