"""What splitting a model costs, layer by layer, and which grid to take."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from hvd_ext.errors import UsageError
from hvd_ext.spatial.geometry.partition import coordinates_of
from hvd_ext.spatial.grid import AXES, GridShape
from hvd_ext.spatial.tools.dry_run import LayerCost, dry_run
from hvd_ext.spatial.tools.speeds import Speeds, measure_speeds
from hvd_ext.spatial.unsupported import UnsupportedError
from hvd_ext.units import format_bytes, format_seconds

if TYPE_CHECKING:
    pass

# Backward computes two products, of the inputs' size and of the weights', for each forward.
_BACKWARD = 2


@dataclass(frozen=True)
class LayerPlan:
    """One layer on all ranks that share a sample; forward.

    Attributes:
        name: of the submodule.
        kind: its class.
        shape: global shape of the output; () for what has no tensor of its own.
        local_shapes: of the output, by rank looked at.
        partitioned: whether the output is split.
        flops: by rank.
        sent_bytes: by rank: halos, gathers, sums.
        messages: exchanges of one rank.
        saved_bytes: kept for backward, by rank.
        parameter_bytes: on every rank.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    local_shapes: tuple[tuple[int, ...], ...]
    partitioned: bool
    flops: tuple[int, ...]
    sent_bytes: tuple[int, ...]
    messages: int
    saved_bytes: tuple[int, ...]
    parameter_bytes: int

    @property
    def imbalance(self) -> float:
        """Flops of the busiest rank over the mean; 1 is even."""
        return max(self.flops) * len(self.flops) / sum(self.flops) if any(self.flops) else 1.0

    def compute_time_s(self, speeds: Speeds) -> float:
        """Forward and backward of the busiest rank."""
        return (1 + _BACKWARD) * max(self.flops) / speeds.flops_per_s

    def exposed_time_s(self, speeds: Speeds) -> float:
        """Exchanges, forward and backward, as far as computing does not hide them."""
        bytes_time_s = 2 * max(self.sent_bytes) / speeds.bytes_per_s
        hidden_s = min(bytes_time_s, self.compute_time_s(speeds))
        return 2 * self.messages * speeds.latency_s + bytes_time_s - hidden_s


@dataclass(frozen=True)
class Plan:
    """What `plan` found; `str` makes a table of it.

    Attributes:
        input_shape: (N, C, *space) that one group of ranks works on.
        grid: ranks that share it.
        ranks: those looked at: all, or on large grids the first, middle and last of an axis.
        layers: in the order in which they run.
        gather_before: submodules before which to gather, for `convert`; () if nowhere.
        speeds: from which times are estimated.
    """

    input_shape: tuple[int, ...]
    grid: GridShape
    ranks: tuple[int, ...]
    layers: tuple[LayerPlan, ...]
    gather_before: tuple[str, ...]
    speeds: Speeds

    @property
    def step_time_s(self) -> float:
        """An estimate of forward and backward, without the exchange of gradients."""
        return sum(
            layer.compute_time_s(self.speeds) + layer.exposed_time_s(self.speeds)
            for layer in self.layers
        )

    @property
    def flops(self) -> int:
        """Forward, of the busiest rank of each layer."""
        return sum(max(layer.flops) for layer in self.layers)

    @property
    def activation_bytes(self) -> int:
        """Kept for backward by the rank that keeps most."""
        return max(map(sum, zip(*(layer.saved_bytes for layer in self.layers), strict=True)))

    @property
    def whole_layers(self) -> tuple[LayerPlan, ...]:
        """Those that compute after the last one whose output is split: the same on every rank."""
        split = [number for number, layer in enumerate(self.layers) if layer.partitioned]
        rest = self.layers[split[-1] + 1 if split else 0 :]
        return tuple(layer for layer in rest if any(layer.flops))

    @property
    def parameter_bytes(self) -> int:
        """Parameters, the same on every rank; gradients take as much again."""
        return sum(layer.parameter_bytes for layer in self.layers)

    def __str__(self) -> str:
        rows = [("layer", "kind", "output", "shard of it", "sent", "GFlop", "kept", "imbalance")]
        for layer in self.layers:
            if not (layer.shape or layer.messages):
                continue
            shapes = sorted(set(layer.local_shapes), key=lambda s: [-n for n in s])
            shards = " ".join("x".join(map(str, s[1:])) for s in (shapes[0], shapes[-1]))
            rows.append(
                (
                    layer.name,
                    layer.kind,
                    "x".join(map(str, layer.shape[1:])),
                    (shards if len(shapes) > 1 else shards.split(" ")[0])
                    if layer.partitioned
                    else "replicated",
                    format_bytes(max(layer.sent_bytes)) if layer.messages else "",
                    f"{max(layer.flops) / 1e9:.3f}" if any(layer.flops) else "",
                    format_bytes(max(layer.saved_bytes)),
                    f"{layer.imbalance:.2f}" if any(layer.flops) else "",
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) if at < 4 else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        return "\n".join([f"{self.input_shape} on {self.grid}", *lines, self._sums()])

    def _sums(self) -> str:
        compute = sum(layer.compute_time_s(self.speeds) for layer in self.layers)
        gather = "gather nowhere"
        if self.gather_before:
            gather = f"gather before {', '.join(self.gather_before)}"
        elif self.whole_layers:
            flops = sum(max(layer.flops) for layer in self.whole_layers)
            gather = (
                f"from {self.whole_layers[0].name} on every rank computes the whole, "
                f"{flops / 1e9:.3f} GFlop"
            )
        return (
            f"per rank: {self.flops / 1e9:.3f} GFlop forward, "
            f"{format_bytes(self.activation_bytes)} kept for backward, "
            f"{format_bytes(2 * self.parameter_bytes)} of parameters and gradients; "
            f"step of about {format_seconds(self.step_time_s)}, "
            f"{format_seconds(self.step_time_s - compute)} of it waiting for ranks; {gather}"
        )


def plan(
    model: nn.Module,
    input_shape: Sequence[int],
    grid: GridShape | None = None,
    *,
    ranks: int | None = None,
    speeds: Speeds | None = None,
    gather_before: Sequence[str] | None = None,
) -> Plan:
    """Estimate what a split costs, without data, MPI or memory for the sample.

    Args:
        model: not converted; stays as it is.
        input_shape: (N, C, *space) that one group of ranks works on.
        grid: ranks that share a sample; None to have the best one for `ranks` found.
        ranks: how many, where no grid is given.
        speeds: measured by `measure_speeds()` if None.
        gather_before: as `convert` takes it; None to have the place found, if there is one.

    Raises:
        UsageError: neither or both of grid and ranks are given.
        UnsupportedError: the model cannot be split so; names the layer.
    """
    if (grid is None) == (ranks is None):
        raise UsageError("plan takes either a grid or a number of ranks, to find the grid for")
    speeds = speeds or measure_speeds()
    shape = tuple(input_shape)
    if grid is not None:
        return _planned(model, shape, grid, speeds, gather_before)
    assert ranks is not None
    found: list[Plan] = []
    refused: UnsupportedError | None = None
    for candidate in grids(ranks, len(shape) - 2):
        try:
            found.append(_planned(model, shape, candidate, speeds, gather_before))
        except UnsupportedError as error:
            refused = error
    if not found:
        assert refused is not None
        raise refused
    return min(found, key=lambda plan: plan.step_time_s)


def grids(ranks: int, dims: int) -> list[GridShape]:
    """Every way to arrange `ranks` along the last `dims` axes, the outer ones longest first."""
    shapes = []
    for counts in itertools.product(range(ranks, 0, -1), repeat=dims):
        size = 1
        for count in counts:
            size *= count
        if size == ranks:
            shapes.append(GridShape(**dict(zip(AXES[-dims:], counts, strict=True))))
    return shapes


def _planned(
    model: nn.Module,
    shape: tuple[int, ...],
    grid: GridShape,
    speeds: Speeds,
    gather_before: Sequence[str] | None,
) -> Plan:
    if gather_before is not None:
        return _dry_run(model, shape, grid, speeds, tuple(gather_before))
    split = _dry_run(model, shape, grid, speeds, ())
    if grid.size == 1:
        return split
    best = split
    for name in _places(model, shape, split):
        try:
            gathered = _dry_run(model, shape, grid, speeds, (name,))
        except UnsupportedError:
            # A skip connection would meet a gathered tensor with a partitioned one.
            continue
        if gathered.step_time_s < best.step_time_s:
            best = gathered
    return best


def _places(model: nn.Module, shape: tuple[int, ...], split: Plan) -> list[str]:
    """Submodules before which gathering may pay, the most promising three.

    Estimated as if gathering cost nothing: the rest is worth doing everywhere only if
    its exchanges take longer than the flops that ranks would do twice.
    """
    whole = {layer.name: layer for layer in _layers(model, shape, GridShape(), (0,), ())}
    gains: list[tuple[float, str]] = []
    gain = 0.0
    for layer in reversed(split.layers):
        together = whole.get(layer.name)
        if together is None:
            continue
        gain += layer.compute_time_s(split.speeds) + layer.exposed_time_s(split.speeds)
        gain -= together.compute_time_s(split.speeds)
        # Deep inside a model a tensor rarely has one reader.
        if gain > 0 and layer.name and layer.name.count(".") < 2:
            gains.append((gain, layer.name))
    return [name for _, name in sorted(gains, reverse=True)[:3]]


def _dry_run(
    model: nn.Module,
    shape: tuple[int, ...],
    grid: GridShape,
    speeds: Speeds,
    gather_before: tuple[str, ...],
) -> Plan:
    ranks = tuple(
        rank
        for rank in range(grid.size)
        if all(
            at in {0, parts // 2, parts - 1}
            for at, parts in zip(coordinates_of(grid.axes, rank), grid.axes, strict=True)
        )
    )
    layers = _layers(model, shape, grid, ranks, gather_before)
    return Plan(shape, grid, ranks, tuple(layers), gather_before, speeds)


def _layers(
    model: nn.Module,
    shape: tuple[int, ...],
    grid: GridShape,
    ranks: tuple[int, ...],
    gather_before: tuple[str, ...],
) -> list[LayerPlan]:
    by_rank = [dry_run(model, shape, grid, rank, gather_before=gather_before) for rank in ranks]
    return [_combined(layers) for layers in zip(*by_rank, strict=True)]


def _combined(layers: Sequence[LayerCost]) -> LayerPlan:
    first = layers[0]
    return LayerPlan(
        first.name,
        first.kind,
        first.shape,
        tuple(layer.local_shape for layer in layers),
        first.partitioned,
        tuple(layer.flops for layer in layers),
        tuple(layer.sent_bytes for layer in layers),
        max(layer.messages for layer in layers),
        tuple(layer.saved_bytes for layer in layers),
        first.parameter_bytes,
    )
