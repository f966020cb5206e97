"""Cost of splitting a model, layer by layer, and the best grid."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from hvd_ext.errors import UsageError
from hvd_ext.spatial.geometry.partition import coordinates_of
from hvd_ext.spatial.grid import AXES, GridShape, ProcessGrid
from hvd_ext.spatial.layers.filters import layers_with_filters
from hvd_ext.spatial.tools.layer_plan import LayerPlan, plan_layers
from hvd_ext.spatial.tools.speeds import Speeds, measure_speeds
from hvd_ext.spatial.unsupported import UnsupportedError
from hvd_ext.units import format_bytes, format_seconds


@dataclass(frozen=True)
class Plan:
    """The result of `plan`; `str` makes a table of it.

    Attributes:
        input_shape: `(N, C, *space)` that one group of ranks works on.
        grid: ranks that share it.
        ranks: the planned ranks: all, or on large grids the first, middle and last of an axis.
        layers: the layers in the order in which they run.
        gather_before: submodules before which to gather, for `convert`; () if nowhere.
        split_filters: layers whose filters ranks share, for `convert`.
        speeds: speeds for the estimates of times.
    """

    input_shape: tuple[int, ...]
    grid: GridShape
    ranks: tuple[int, ...]
    layers: tuple[LayerPlan, ...]
    gather_before: tuple[str, ...]
    split_filters: tuple[str, ...]
    speeds: Speeds

    @property
    def step_time_s(self) -> float:
        """Estimate forward and backward, without the exchange of gradients."""
        return sum(
            layer.compute_time_s(self.speeds) + layer.exposed_time_s(self.speeds)
            for layer in self.layers
        )

    @property
    def time_s(self) -> float:
        """Estimate the step with the exchange of gradients among a sample's ranks, not hidden."""
        return sum(layer.time_s(self.speeds) for layer in self.layers)

    @property
    def flops(self) -> int:
        """Return the operations of forward, of the busiest rank of each layer."""
        return sum(max(layer.flops) for layer in self.layers)

    @property
    def activation_bytes(self) -> int:
        """Return the bytes that the rank that keeps most keeps for backward."""
        return max(map(sum, zip(*(layer.saved_bytes for layer in self.layers), strict=True)))

    @property
    def whole_layers(self) -> tuple[LayerPlan, ...]:
        """Return the layers after the last one whose output is split: the same on every rank."""
        split = [number for number, layer in enumerate(self.layers) if layer.partitioned]
        rest = self.layers[split[-1] + 1 if split else 0 :]
        return tuple(layer for layer in rest if any(layer.flops) and not layer.shares_filters)

    @property
    def parameter_bytes(self) -> int:
        """Return the bytes of a rank's parameters; gradients take as much again."""
        return sum(layer.parameter_bytes for layer in self.layers)

    def __str__(self) -> str:
        rows = [
            ("layer", "kind", "output", "shard of it", "halo", "sent", "GFlop", "kept", "imbalance")
        ]
        for layer in self.layers:
            if not (layer.shape or layer.messages):
                continue
            shapes = sorted(set(layer.local_shapes), key=lambda s: [-n for n in s])
            shards = " ".join("x".join(map(str, s[1:])) for s in (shapes[0], shapes[-1]))
            shared = ", filters shared" if layer.shares_filters else ""
            rows.append(
                (
                    layer.name,
                    layer.kind,
                    "x".join(map(str, layer.shape[1:])),
                    (
                        (shards if len(shapes) > 1 else shards.split(" ")[0])
                        if layer.partitioned
                        else "replicated"
                    )
                    + shared,
                    " / ".join(sorted({halo for halo in layer.halos if halo})),
                    format_bytes(max(layer.sent_bytes)) if layer.messages else "",
                    f"{max(layer.flops) / 1e9:.3f}" if any(layer.flops) else "",
                    format_bytes(max(layer.saved_bytes)),
                    f"{layer.imbalance:.2f}" if any(layer.flops) else "",
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) if at < 5 else cell.rjust(width)
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
        if self.split_filters:
            gather += f"; share the filters of {', '.join(self.split_filters)}"
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
    grid: GridShape | ProcessGrid | None = None,
    *,
    ranks: int | None = None,
    speeds: Speeds | None = None,
    gather_before: Sequence[str] | None = None,
    split_filters: Sequence[str] | None = None,
) -> Plan:
    """Estimate the cost of a split, without data, MPI or memory for the sample.

    Args:
        model: not converted; stays unchanged.
        input_shape: `(N, C, *space)` that one group of ranks works on.
        grid: ranks that share a sample; a ProcessGrid, to report its measurements on GPUs; None to
            find the best one for `ranks`.
        ranks: number of ranks, if no grid is given.
        speeds: measured by `measure_speeds()` if None.
        gather_before: see `convert`; None to find the place, if there is one.
        split_filters: see `convert`; None to find the layers for which sharing filters is faster,
            including the exchange of their gradients.

    Returns:
        Time, bytes sent and memory of each layer, and whether its interior is computed while its
        halo travels, as GPUs measured or by the interior's share; `str` makes a table of it.

    Raises:
        UsageError: neither or both of grid and ranks are given.
        UnsupportedError: the model cannot be split so; names the layer.
    """
    if (grid is None) == (ranks is None):
        raise UsageError("plan takes either a grid or a number of ranks, to find the grid for")
    speeds = speeds or measure_speeds()
    shape = tuple(input_shape)
    if isinstance(grid, ProcessGrid):
        return _planned(model, shape, grid.shape, speeds, gather_before, split_filters, grid.ways)
    if grid is not None:
        return _planned(model, shape, grid, speeds, gather_before, split_filters)
    assert ranks is not None
    found: list[Plan] = []
    refused: UnsupportedError | None = None
    for candidate in grids(ranks, len(shape) - 2):
        try:
            found.append(_planned(model, shape, candidate, speeds, gather_before, split_filters))
        except UnsupportedError as error:
            refused = error
    if not found:
        assert refused is not None
        raise refused
    return min(found, key=lambda plan: plan.time_s)


def grids(ranks: int, dims: int) -> list[GridShape]:
    """Return every arrangement of `ranks` along the last `dims` axes, longest outer axes first."""
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
    split_filters: Sequence[str] | None,
    ways: Mapping[Hashable, Any] | None = None,
) -> Plan:
    def run(gathered: Sequence[str], shared: Sequence[str]) -> Plan:
        return _dry_run(model, shape, grid, speeds, tuple(gathered), tuple(shared), ways)

    best = run(gather_before or (), split_filters or ())
    if grid.size == 1:
        return best
    if gather_before is None:
        split = best
        for name in _places(model, shape, split):
            try:
                gathered = run([name], split_filters or ())
            except UnsupportedError:
                # A skip connection would combine a gathered tensor with a partitioned one.
                continue
            best = min(best, gathered, key=lambda plan: plan.time_s)
    if split_filters is None:
        shared = _worth_sharing(best, run, list(layers_with_filters(model, grid.filters)))
        if shared:
            best = run(best.gather_before, shared)
    return best


def _worth_sharing(
    plan: Plan, run: Callable[[Sequence[str], Sequence[str]], Plan], names: Sequence[str]
) -> list[str]:
    """Return those of the layers `names` that are faster if ranks share their filters.

    Args:
        plan: plan without shared filters.
        run: makes a plan for places to gather and filters to share.
        names: names of layers.
    """
    try:
        shared = run(plan.gather_before, names)
    except UnsupportedError:
        return []
    before = {layer.name: layer.time_s(plan.speeds) for layer in plan.layers}
    after = {layer.name: layer.time_s(plan.speeds) for layer in shared.layers}
    return [name for name in names if after.get(name, 0.0) < before.get(name, 0.0)]


def _places(model: nn.Module, shape: tuple[int, ...], split: Plan) -> list[str]:
    """Return the three most promising submodules before which gathering may pay.

    The estimate assumes that gathering costs nothing: it pays only if the exchanges of the
    remaining layers take longer than the flops that all ranks would then repeat.
    """
    whole = {layer.name: layer for layer in plan_layers(model, shape, GridShape(), (0,))}
    gains: list[tuple[float, str]] = []
    gain = 0.0
    for layer in reversed(split.layers):
        together = whole.get(layer.name)
        if together is None:
            continue
        gain += layer.compute_time_s(split.speeds) + layer.exposed_time_s(split.speeds)
        gain -= together.compute_time_s(split.speeds)
        # Deep inside a model, a tensor often has several readers.
        if gain > 0 and layer.name and layer.name.count(".") < 2:
            gains.append((gain, layer.name))
    return [name for _, name in sorted(gains, reverse=True)[:3]]


def _dry_run(
    model: nn.Module,
    shape: tuple[int, ...],
    grid: GridShape,
    speeds: Speeds,
    gather_before: tuple[str, ...],
    split_filters: tuple[str, ...],
    ways: Mapping[Hashable, Any] | None,
) -> Plan:
    axes = (*grid.axes, grid.channels)
    ranks = tuple(
        rank
        for rank in range(grid.size)
        if all(
            at in {0, parts // 2, parts - 1}
            for at, parts in zip(coordinates_of(axes, rank), axes, strict=True)
        )
    )
    layers = plan_layers(model, shape, grid, ranks, gather_before, split_filters, ways)
    return Plan(shape, grid, ranks, tuple(layers), gather_before, split_filters, speeds)
