"""Allreduce of tensors, in place: scaled, summed by the algorithm of the table, scaled again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from hvd_ext.allreduce import allreduce
from hvd_ext.allreduce.agreed import read_table
from hvd_ext.tensors import dtype_name, in_numpys_dtype

if TYPE_CHECKING:
    from hvd_ext.job.topology import Topology
    from hvd_ext.torch.standalone.coordinator import Request
    from hvd_ext.torch.standalone.negotiation import Run

# Horovod's numbers.
Average, Sum, Adasum, Min, Max, Product = range(6)
OPERATIONS = {Average: "average", Sum: "sum", Min: "min", Max: "max", Product: "product"}


class Reductions:
    """The allreduces of one job."""

    def __init__(self, topology: Topology) -> None:
        """Read the table of algorithms; collective."""
        self._topology, self._table = topology, read_table(topology.world)

    def reduce(self, tensors: Sequence[torch.Tensor], op: int, before: float, after: float) -> None:
        """Reduce tensors over all ranks, in place; collective.

        Args:
            tensors: contiguous, on the CPU, of types in DTYPES.
            op: one of OPERATIONS.
            before: factor of the tensors before the sum.
            after: factor of the sum.
        """
        for tensor in tensors:
            flat = tensor.detach().reshape(-1)
            _scale(flat, before)
            name, factor = OPERATIONS[op], after
            if op == Average and not flat.is_floating_point():
                # As in Horovod, the mean of integers is truncated to an integer.
                name, factor = "sum", after / self._topology.world.size
            stored, dtype = in_numpys_dtype(flat).numpy(), dtype_name(flat.dtype)
            allreduce(self._topology, stored, name, table=self._table, dtype=dtype)
            _scale(flat, factor)

    def take_part(self, request: Request) -> Run:
        """Take part in an allreduce with zeros, for a rank that has joined."""
        facts = request.facts
        zeros = [
            torch.zeros(shape, dtype=getattr(torch, name))
            for shape, name in zip(facts["shape"], facts["type"], strict=True)
        ]

        def run(own: Sequence[Any]) -> None:
            del own
            self.reduce(zeros, facts["op"], facts["prescale_factor"], facts["postscale_factor"])

        return run


def _scale(flat: torch.Tensor, factor: float) -> None:
    if factor == 1.0:
        return
    if flat.is_floating_point():
        flat.mul_(factor)
    else:
        flat.copy_(flat.double().mul_(factor))
