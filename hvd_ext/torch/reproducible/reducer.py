"""Gradients of slots: a rank adds those of its passes as a subtree, the arena those of the ranks.

Each backward pass is a slot. The gradient that autograd has made is taken out of `.grad`, so
that autograd adds nothing itself, and is added to the partial sums that `summation_tree.merges`
names. At most lg(passes) + 1 of them exist. The last pass writes the rank's sum into the arena.
Gradients of 16 bits are summed in float32 there, and rounded once, when the exchange is over.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hvd_ext.arena.host import HostArena
from hvd_ext.arithmetic.summation_tree import merges
from hvd_ext.errors import UsageError
from hvd_ext.torch.job.begun_steps import REPRODUCIBLE_JOIN
from hvd_ext.torch.reduction.reducer import Reducer
from hvd_ext.torch.reduction.slot import GradientSlot
from hvd_ext.torch.reproducible.order import explain
from hvd_ext.torch.sharded.gradient import ShardedGradient
from hvd_ext.torch.sharded.reducer import ShardedReducer
from hvd_ext.torch.torch_internals import after_backward

if TYPE_CHECKING:
    from hvd_ext.arena.protocol import Arena


class ReproducibleReducer(Reducer):
    """A Reducer whose sums do not depend on the number of ranks."""

    join_refusal: str | None = REPRODUCIBLE_JOIN
    can_share = False
    copies_back = False

    def __init__(self, *arguments: Any) -> None:
        # State of this step.
        self._pass = 0
        self._taken: set[int] = set()  # gradients that this pass has made
        self._partial: dict[int, dict[int, torch.Tensor | None]] = defaultdict(dict)
        super().__init__(*arguments)

    def explain(self) -> str:
        each = self._passes_per_step
        return f"{explain(self._factory.slots, each)}\n{super().explain()}"

    def set_passes_per_step(self, passes: int) -> None:
        """Accept only the number of passes that the slots already fix.

        Raises:
            UsageError: `passes` is another number.
        """
        if passes != self._passes_per_step:
            raise UsageError(
                f"set_passes_per_step({passes}) with reproducible={self._factory.slots}: each rank "
                f"takes {self._passes_per_step} backward passes: give that number of slots instead"
            )

    def ready(self, index: int) -> None:
        slot = self._slots[index]
        if self._pass == self._passes_per_step or index in self._taken:
            raise AssertionError(
                f"the gradient of {slot.name!r} was computed more often than once in each of "
                f"{self._passes_per_step} backward passes before step(): reproducible="
                f"{self._factory.slots} takes one backward pass for each slot"
            )
        if not self._taken:
            after_backward(self._end_pass)
        self._taken.add(index)
        self.in_flight = True
        assert slot.parameter.grad is not None
        if slot.parameter.grad.is_sparse:
            self._sparse.start(slot, self._step)  # refuses a sparse gradient, or makes it dense
        grad, slot.parameter.grad = slot.parameter.grad, None
        self._add(index, grad.detach().to(slot.view.dtype))

    def _end_pass(self) -> None:
        """Count the pass; parameters without a gradient take part with zeros."""
        for index in range(len(self._slots)):
            if index not in self._taken:
                self._add(index, None)
        self._taken.clear()
        self._pass += 1

    def _add(self, index: int, grad: torch.Tensor | None) -> None:
        slot, partial = self._slots[index], self._partial[index]
        last = self._pass == self._passes_per_step - 1
        partial[self._pass] = grad
        for left, right in merges(self._pass):
            into = slot.view if last and left == 0 else None
            # Autograd's tensor may also be another parameter's gradient, or belong to the program.
            if into is None and right - left > 1:
                into = partial[left]
            partial[left] = _sum(partial[left], partial.pop(right), into)
        if last:
            self._put_into_arena(slot, partial.pop(0))

    def _put_into_arena(self, slot: GradientSlot, total: torch.Tensor | None) -> None:
        if total is None:
            slot.view.zero_()
        elif total is not slot.view:
            slot.view.copy_(total)
        if self._step > 0:
            now_s = time.monotonic()
            self._backward_since_s = self._backward_since_s or now_s
            slot.ready_s = min(slot.ready_s, now_s - self._backward_since_s)
        slot.passes_left = 0
        if slot.parameter.dtype == slot.view.dtype:
            slot.hand_over_copy()
        assert slot.bucket is not None
        slot.bucket.missing -= 1
        if slot.bucket.missing == 0:
            self._submit_complete()

    def _place(self, arena: Arena, slots: Sequence[GradientSlot]) -> None:
        super()._place(arena, slots)
        assert isinstance(arena, HostArena)
        arena.check_while_waiting(partial(self._factory.refuse_join, REPRODUCIBLE_JOIN))

    def _complete(self) -> None:
        self._arenas.check_unmoved()
        slots, each = self._factory.slots, self._passes_per_step
        if self._pass != each:
            raise UsageError(
                f"{self._pass} backward passes before step(), where reproducible={slots} takes "
                f"{each} on each rank: call backward() once for each slot"
            )
        if unfrozen := self.frozen.take():
            raise UsageError(
                f"{unfrozen[0][0]!r} was frozen when DistributedOptimizer() was "
                "called, and is not now: call it again after unfreezing"
            )
        self._factory.begin_step(self.number)
        for slot in self._slots:
            if slot.parameter.dtype == slot.view.dtype:
                slot.check_untouched()
            elif slot.parameter.grad is not None:
                raise UsageError(
                    f"the gradient of {slot.name!r} was set between backward() and step(): call "
                    "optimizer.synchronize() before"
                )

    def _end_step(self) -> None:
        super()._end_step()
        for slot in self._slots:
            if slot.parameter.dtype != slot.view.dtype and slot.parameter.requires_grad:
                slot.parameter.grad = slot.view.to(slot.parameter.dtype)

    def _reset(self) -> None:
        super()._reset()
        self._pass = 0
        self._taken.clear()
        self._partial.clear()


class ReproducibleShardedReducer(ReproducibleReducer, ShardedReducer):
    """The same reducer for an optimizer whose update is divided among the ranks of a node."""

    def show_sums(self) -> None:
        """Put whole sums into `.grad`, so that their norm is that of an unsharded optimizer."""
        if any(isinstance(slot.parameter.grad, ShardedGradient) for slot in self._slots):
            for arena in self._sharded_arenas():
                arena.give_sums()
            for slot in self._slots:
                slot.parameter.grad = slot.view.data


def _sum(
    left: torch.Tensor | None, right: torch.Tensor | None, into: torch.Tensor | None
) -> torch.Tensor | None:
    """Return the sum of two partial sums, in `into`; None stands for zero."""
    if left is None or right is None:
        held = right if left is None else left
        # Adding zero makes a negative zero positive, so this does it, too.
        return None if held is None else torch.add(held, 0.0, out=into)
    return torch.add(left, right, out=into)
