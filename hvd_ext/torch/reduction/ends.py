"""Buckets of many short gradients, watched at their ends.

A hook in Python takes longer than autograd takes to make a short gradient. Once it is known in
which order a bucket's gradients are made, hooks on the first and on the last of them are enough:
one that is None at the first and a tensor at the last was made between the two. A bucket in which
that does not hold (another order, a parameter that is not used, gradients that are zeroed instead
of set to None) gets its hooks back for good, and `synchronize` takes the gradients that
it made without hooks in that step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvd_ext.torch.reduction.hooks import Hooks
    from hvd_ext.torch.reduction.slot import GradientSlot


class Ends:
    """The hooks of one bucket, reduced to two.

    Attributes:
        between: the gradients without hooks.
    """

    def __init__(self, order: Sequence[GradientSlot], hooks: Hooks) -> None:
        """Remove hooks.

        Args:
            order: the bucket's gradients as backward makes them.
            hooks: of the reducer.
        """
        self.between = order[1:-1]
        self._first = order[0]
        self._hooks = hooks
        self._has_begun = False
        for slot in self.between:
            hooks.remove(slot.index)

    def take(self, slot: GradientSlot) -> Sequence[GradientSlot] | None:
        """Note that one of the two gradients with hooks was made.

        Returns:
            The gradients without hooks that have been made since the first, all of them at the
            last one; None if that is not known.
        """
        if slot is self._first:
            self._has_begun = all(other.parameter.grad is None for other in self.between)
            return () if self._has_begun else None
        if self._has_begun and all(other.parameter.grad is not None for other in self.between):
            self._has_begun = False
            return self.between
        return None

    def forget(self) -> None:
        """Begin with another step."""
        self._has_begun = False

    def restore(self) -> None:
        """Add the hooks that were removed."""
        for slot in self.between:
            self._hooks.add(slot.index, slot.parameter)
