"""Two ways to compute a layer on a GPU; the faster one is chosen for each shape.

    overlapped    the interior while halos are on their way, then the boundary, slab by slab
    whole         all of it at once, after the exchange

Small layers do not pay for the additional kernels of the boundary. When a layer of a shape first
runs on a GPU, both ways run a few times without gradients, and the ranks agree on the slowest
rank's times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hvd_ext.events import tuning
from hvd_ext.spatial.exchange.device import gpu

if TYPE_CHECKING:
    from torch import Tensor

    from hvd_ext.spatial.tensor import SpatialTensor

_TIMES = 3


@dataclass(frozen=True, slots=True)
class Way:
    """The way to compute a layer of a shape on GPUs.

    Attributes:
        layer: its name, for printing.
        overlapped_s: time of forward on the slowest rank.
        whole_s: the same for the other way.
    """

    layer: str
    overlapped_s: float
    whole_s: float

    @property
    def overlaps(self) -> bool:
        return self.overlapped_s <= self.whole_s

    def __str__(self) -> str:
        chosen = "overlapped" if self.overlaps else "whole"
        times = f"overlapped {1e3 * self.overlapped_s:.3f} ms, whole {1e3 * self.whole_s:.3f} ms"
        return f"{self.layer}: {chosen} ({times})"


def chosen(
    x: SpatialTensor,
    key: Hashable,
    layer: str,
    overlapped: Callable[[], Tensor],
    whole: Callable[[], Tensor],
) -> Callable[[], Tensor]:
    """Choose the way for a layer whose halos are exchanged; a collective.

    Args:
        x: the input.
        key: identifies the layer and its shapes, the same on all ranks.
        layer: its name, for printing.
        overlapped: computes the output in this way.
        whole: computes the output in this way.
    """
    if not x.grid.overlap:
        return overlapped
    way = x.grid.ways.get(key)
    if way is None:
        if not gpu.is_on_gpu(x.local):
            return overlapped
        with torch.no_grad(), tuning():
            times = [_best_s(x.local, run) for run in (overlapped, whole)]
        # A sum of one number of each rank among zeros is exact.
        rows = torch.zeros(x.grid.space.size, 2, dtype=torch.float64)
        rows[x.grid.space.rank] = torch.tensor(times, dtype=torch.float64)
        slowest = x.grid.space.allreduce(rows).amax(0).tolist()
        way = x.grid.ways[key] = Way(layer, *slowest)
    return overlapped if way.overlaps else whole


def _best_s(local: Tensor, run: Callable[[], Tensor]) -> float:
    # Libraries choose their kernels in the first call.
    best_s = float("inf")
    for number in range(1 + _TIMES):
        gpu.synchronize(local)
        began_s = time.perf_counter()
        run()
        gpu.synchronize(local)
        if number:
            best_s = min(best_s, time.perf_counter() - began_s)
    return best_s
