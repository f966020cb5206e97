"""Sparse gradients: exchanged by Horovod's allgather, or made dense, as the user requests.

A gradient that stays sparse has a place in the arena until all ranks know that it is sparse, so
that the order of the buckets stays the same. The place is zero on a rank that knows it; a rank that
does not know it yet may put a dense gradient there, and the sum of these is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from hvd_ext.errors import UsageError
from hvd_ext.torch import horovods

if TYPE_CHECKING:
    from hvd_ext.torch.reduction.slot import GradientSlot

# Steps until every rank knows which gradients are sparse.
KNOWN_AFTER = 4


class SparseExchange:
    """The sparse gradients of one optimizer."""

    def __init__(self, op: Any) -> None:
        self._op = op
        self._started: list[tuple[GradientSlot, Callable[[], torch.Tensor]]] = []

    def start(self, slot: GradientSlot, step: int) -> None:
        """Begin to exchange a gradient; a rank that has none takes part with no rows.

        Raises:
            UsageError: it is sparse for the first time, too late for other ranks to know.
        """
        if not slot.sparse:
            if step >= KNOWN_AFTER:
                raise UsageError(
                    f"the gradient of {slot.name!r} is sparse for the first time in step {step}, "
                    "where other ranks do not expect it: use the parameter in the first "
                    f"{KNOWN_AFTER} steps, or give DistributedOptimizer sparse_as_dense=True"
                )
            slot.sparse = True
            slot.view.zero_()  # a sum of an earlier step may be there
        grad = slot.parameter.grad
        if grad is None:
            grad = _without_rows(slot.parameter)
        elif not grad.is_sparse:
            grad = grad.to_sparse(1)
        self._send(slot, grad)

    def start_what_others_have(
        self,
        slots: Sequence[GradientSlot],
        named_by_any: Callable[[list[int]], list[int]],
    ) -> None:
        """Take part in exchanges of gradients that only other ranks knew to be sparse; collective.

        This rank sends no rows, because the arena has summed its gradients.
        """
        mine = [index for index, slot in enumerate(slots) if slot.sparse]
        for index in named_by_any(mine):
            slot = slots[index]
            if not slot.sparse:
                slot.sparse = True
                self._send(slot, _without_rows(slot.parameter))

    def finish(self, step: int) -> None:
        """Wait for all sparse gradients, and leave them in `.grad`."""
        for slot, result in self._started:
            total = result()
            # Until all ranks know, some may put a dense gradient into the arena.
            if step < KNOWN_AFTER and slot.view.any():
                total = total + slot.view.to_sparse(1)
                slot.view.zero_()
            slot.parameter.grad = total
        self._started.clear()

    def forget(self) -> None:
        """Drop the exchanges that were started in this step."""
        self._started.clear()

    def _send(self, slot: GradientSlot, grad: torch.Tensor) -> None:
        result = horovods.sparse_allreduce_async(grad, name=slot.name, op=self._op)
        self._started.append((slot, result))


class MadeDense(SparseExchange):
    """Makes sparse gradients dense, so that they are exchanged in the arena."""

    def __init__(self) -> None:
        super().__init__(None)

    def start(self, slot: GradientSlot, step: int) -> None:
        """Make a gradient dense; nothing is sent."""
        if slot.parameter.grad is not None:
            slot.parameter.grad = slot.parameter.grad.to_dense()


class NoSparse(SparseExchange):
    """Refuses sparse gradients."""

    def __init__(self, asked: str) -> None:
        """Keep `asked`, the argument that excludes sparse gradients, as the user wrote it."""
        super().__init__(None)
        self._asked = asked

    def start(self, slot: GradientSlot, step: int) -> None:
        """Refuse the gradient.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"{self._asked}: the gradient of {slot.name!r} is sparse: give DistributedOptimizer "
            "sparse_as_dense=True, or leave it out"
        )


@contextmanager
def made_sparse(parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    """Make dense gradients sparse, by rows, for as long as the context is open."""
    dense = [(p, p.grad) for p in parameters if p.grad is not None and not p.grad.is_sparse]
    for parameter, grad in dense:
        parameter.grad = grad.to_sparse(1)
    try:
        yield
    finally:
        for parameter, grad in dense:
            parameter.grad = grad


def _without_rows(parameter: torch.nn.Parameter) -> torch.Tensor:
    rows = parameter.new_empty(0, *parameter.shape[1:])
    nowhere = torch.empty(1, 0, dtype=torch.int64, device=rows.device)
    return torch.sparse_coo_tensor(nowhere, rows, parameter.shape, check_invariants=True)
