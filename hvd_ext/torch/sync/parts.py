"""This rank's part of each parameter; the ranks of a node together have all of it.

So data that nodes exchange every many steps, or keep for that, exist once on a node, and not once
for each rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from hvd_ext.arena.layout import ParameterSpec, layout_by_size
from hvd_ext.tensors import as_bytes
from hvd_ext.torch.parameters import NamedParameters, in_memory_order, placed_as
from hvd_ext.units import MIB

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.allreduce.operations import Array

_BUCKET_BYTES = 4 * MIB


class Parts:
    """The division of parameters, and the places of a rank's parts.

    Attributes:
        parameters: the divided parameters.
        layout: layout of this rank's parts, in float64 or float32.
    """

    def __init__(self, named_parameters: NamedParameters, node: MPI.Comm) -> None:
        """Divide the parameters.

        Args:
            named_parameters: parameters of floats; the same on all ranks.
            node: communicator of the node, which only this object uses.
        """
        self._node = node
        self.parameters = [p for _, p in named_parameters]
        self.layout = layout_by_size(
            [_specify(name, p, _bounds(p, node)) for name, p in named_parameters], _BUCKET_BYTES
        )

    def memory(self) -> tuple[Array, list[torch.Tensor]]:
        """Return zeros for the parts: as uint8, and as each parameter's part (1-D)."""
        memory = np.zeros(self.layout.total_bytes, np.uint8)
        views: dict[int, torch.Tensor] = {}
        for bucket in self.layout.buckets:
            for span in bucket.spans:
                item = np.dtype(bucket.dtype).itemsize
                part = memory[span.offset_bytes : span.offset_bytes + span.count * item]
                views[span.parameter] = torch.from_numpy(part.view(bucket.dtype))
        return memory, [views[index] for index in range(len(views))]

    def own(self, parameter: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's part (1-D) of a tensor of a parameter's shape."""
        begin, end = _bounds(parameter, self._node)
        return in_memory_order(parameter, whole)[begin:end]

    def gather(self, parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        """Gather a value of which this node's ranks have parts; collective of the node.

        Args:
            parameter: the divided parameter.
            part: this rank's (1-D), of any dtype.
        """
        size, item = self._node.size, part.element_size()
        counts = [end - begin for begin, end in (_cut(parameter, r, size) for r in range(size))]
        flat = torch.empty(parameter.numel(), dtype=part.dtype)
        self._node.Allgatherv(
            as_bytes(part),
            [as_bytes(flat), [count * item for count in counts]],
        )
        return placed_as(parameter, flat)


def _specify(name: str, parameter: torch.Tensor, bounds: tuple[int, int]) -> ParameterSpec:
    count = bounds[1] - bounds[0]
    # A part of a matrix is a matrix, because some formats treat vectors differently.
    shape = (1, count) if parameter.dim() > 1 else (count,)
    dtype = "float64" if parameter.dtype == torch.float64 else "float32"
    return ParameterSpec(name, shape, (count, 1)[-len(shape) :], dtype)


def _bounds(parameter: torch.Tensor, node: MPI.Comm) -> tuple[int, int]:
    return _cut(parameter, node.rank, node.size)


def _cut(parameter: torch.Tensor, rank: int, size: int) -> tuple[int, int]:
    count = parameter.numel()
    return count * rank // size, count * (rank + 1) // size
