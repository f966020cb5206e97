"""Buckets of many short gradients, watched at their ends.

A hook in Python takes longer than autograd takes to make a short gradient. Once the order of a
bucket's gradients is known, hooks on the first and on the last of them are enough: a gradient that
is None at the first hook and a tensor at the last one was made between the two. If that does not
hold in a bucket (another order, an unused parameter, gradients that are zeroed instead of set to
None), it gets its hooks back permanently, and `synchronize` takes the gradients that were made
without hooks in that step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hvd_ext.torch.reduction.batch import Batch

if TYPE_CHECKING:
    from hvd_ext.torch.reduction.hooks import Hooks
    from hvd_ext.torch.reduction.slot import GradientSlot


class Ends:
    """The hooks of one bucket, reduced to two.

    Attributes:
        batch: the gradients without hooks.
    """

    def __init__(self, order: Sequence[GradientSlot], hooks: Hooks) -> None:
        """Remove hooks.

        Args:
            order: the bucket's gradients in backward's order.
            hooks: hooks of the reducer.
        """
        self.batch = Batch(order[1:-1])
        self._first = order[0]
        self._hooks = hooks
        self._has_begun = False
        for slot in self.batch.slots:
            hooks.remove(slot.index)

    def take(self, slot: GradientSlot) -> bool | None:
        """Note that one of the two gradients with hooks was made.

        Returns:
            Whether the gradients without hooks were made after the first one; None if unknown.
        """
        if slot is self._first:
            self._has_begun = self.batch.have_no_gradient()
            return False if self._has_begun else None
        if self._has_begun and self.batch.collect():
            self._has_begun = False
            return True
        return None

    def forget(self) -> None:
        """Begin another step."""
        self._has_begun = False

    def restore(self) -> None:
        """Add the hooks that were removed."""
        for slot in self.batch.slots:
            self._hooks.add(slot.index, slot.parameter)
