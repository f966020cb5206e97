"""Cost of one layer of a split model, on all ranks that share a sample."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from hvd_ext.spatial.grid import GridShape
from hvd_ext.spatial.tools.dry_run import LayerCost, dry_run
from hvd_ext.spatial.tools.speeds import Speeds

# For each product of forward, backward computes two: the inputs' gradients and the weights'.
_BACKWARD = 2


@dataclass(frozen=True)
class LayerPlan:
    """One layer on all ranks that share a sample; forward.

    Attributes:
        name: name of the submodule.
        kind: its class.
        shape: global shape of the output; () if the layer has no output tensor.
        local_shapes: shapes of the output, by planned rank.
        partitioned: whether the output is split.
        flops: operations by rank.
        sent_bytes: bytes sent by rank: halos, gathers, sums.
        messages: exchanges of one rank.
        halos: by rank, "overlapped" if the halo travels while the interior is computed, "whole" if
            the layer waits for it, with "(measured)" if GPUs measured that; "" without halos.
        saved_bytes: bytes kept for backward, by rank.
        parameter_bytes: bytes of the parameters on the rank that has most.
        gradient_bytes: bytes that a rank sends for their gradients.
        shares_filters: whether each rank has only some of the filters.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    local_shapes: tuple[tuple[int, ...], ...]
    partitioned: bool
    flops: tuple[int, ...]
    sent_bytes: tuple[int, ...]
    messages: int
    halos: tuple[str, ...]
    saved_bytes: tuple[int, ...]
    parameter_bytes: int
    gradient_bytes: int
    shares_filters: bool

    @property
    def imbalance(self) -> float:
        """Return the flops of the busiest rank over the mean; 1 is even."""
        return max(self.flops) * len(self.flops) / sum(self.flops) if any(self.flops) else 1.0

    def compute_time_s(self, speeds: Speeds) -> float:
        """Return the time of forward and backward on the busiest rank."""
        return (1 + _BACKWARD) * max(self.flops) / speeds.flops_per_s

    def exposed_time_s(self, speeds: Speeds) -> float:
        """Return the time of exchanges, forward and backward, that computing does not hide."""
        bytes_time_s = 2 * max(self.sent_bytes) / speeds.bytes_per_s
        hidden_s = min(bytes_time_s, self.compute_time_s(speeds))
        return 2 * self.messages * speeds.latency_s + bytes_time_s - hidden_s

    def time_s(self, speeds: Speeds) -> float:
        """Return this layer's share of a step, including the exchange of its gradients."""
        gradients_s = self.gradient_bytes / speeds.bytes_per_s
        return self.compute_time_s(speeds) + self.exposed_time_s(speeds) + gradients_s


def plan_layers(
    model: nn.Module,
    shape: tuple[int, ...],
    grid: GridShape,
    ranks: tuple[int, ...],
    gather_before: Sequence[str] = (),
    split_filters: Sequence[str] = (),
    ways: Mapping[Hashable, Any] | None = None,
) -> list[LayerPlan]:
    """Return the work of the layers of a split model; arguments as in `dry_run`, for each rank."""
    by_rank = [
        dry_run(
            model,
            shape,
            grid,
            rank,
            gather_before=gather_before,
            split_filters=split_filters,
            ways=ways,
        )
        for rank in ranks
    ]
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
        tuple(layer.halo for layer in layers),
        tuple(layer.saved_bytes for layer in layers),
        max(layer.parameter_bytes for layer in layers),
        max(layer.gradient_bytes for layer in layers),
        first.shares_filters,
    )
