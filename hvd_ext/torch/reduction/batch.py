"""Short gradients of one bucket that are copied together, into the arena and out of it.

To make a view of the arena for `.grad` takes longer than to copy a short gradient. These stay where
autograd has made them: they are copied in when the bucket is complete, and the sums are copied
back to them at the end of the step.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import attrgetter, eq, is_
from typing import Any

import torch

from hvd_ext.shm.copies import copy_each
from hvd_ext.torch.reduction.slot import GradientSlot
from hvd_ext.torch.torch_internals import InFlight, version_of

_layout_of, _dtype_of, _requires_grad = map(attrgetter, ("layout", "dtype", "requires_grad"))
_address_of = torch.Tensor.data_ptr


class Batch:
    """The gradients of a bucket that are copied together.

    A step looks at its slots by the lists here alone: to visit thousands of them takes longer than
    to copy what they hold.

    Attributes:
        slots: theirs.
    """

    def __init__(self, slots: Sequence[GradientSlot]) -> None:
        """Take slots that have their places in the arena."""
        self.slots = slots
        self._parameters = [slot.parameter for slot in slots]
        self._places = array("Q", [slot.address for slot in slots])
        self._lengths = array("Q", [slot.view.nbytes for slot in slots])
        self._dtypes = {slot.view.dtype for slot in slots}
        self._sharings, self._is_shared = -1, False
        self._is_contiguous = all(slot.view.is_contiguous() for slot in slots)
        # The gradients that this step has copied.
        self._grads: Sequence[torch.Tensor] = ()
        self._sources = array("Q")
        self._versions: Sequence[int] = ()

    def have_no_gradient(self) -> bool:
        """Whether no slot has one."""
        return all(parameter.grad is None for parameter in self._parameters)

    def have_gradients(self) -> bool:
        """Whether every slot has one."""
        return all(parameter.grad is not None for parameter in self._parameters)

    def bring_in(self) -> bool:
        """Copy gradients into the arena: from now on they are being exchanged.

        Returns:
            Whether that was done: it is not if one lies in memory in another way than in the
            arena, or is not autograd's alone.
        """
        grads: list[Any] = [parameter.grad for parameter in self._parameters]
        if not self._can_copy(grads):
            return False
        sources = array("Q", map(_address_of, grads))
        # Two that share memory would get one sum; one that is known to be zero may have none.
        if len({0, *sources}) <= len(sources):
            return False
        self._grads, self._sources = grads, sources
        copy_each(self._places, sources, self._lengths)
        self._versions = list(map(version_of, grads))
        for grad in grads:
            grad.__class__ = InFlight
        return True

    def find_changed(self) -> GradientSlot | None:
        """A slot whose gradient something wrote to since `bring_in`."""
        for grad in self._grads:
            grad.__class__ = torch.Tensor
        now = [parameter.grad for parameter in self._parameters]
        same = map(is_, now, self._grads)
        unmoved = map(eq, map(_address_of, self._grads), self._sources)
        unchanged = map(eq, map(version_of, self._grads), self._versions)
        # A gradient at a time would take three times as long.
        for of_all in (same, unmoved, unchanged):
            checked = list(of_all)
            if not all(checked):
                return self.slots[checked.index(False)]
        return None

    def give_back(self) -> None:
        """Have gradients hold the sums that lie in the arena."""
        copy_each(self._sources, self._places, self._lengths)

    def forget(self) -> None:
        """Forget this step's gradients."""
        self._grads = self._versions = ()
        self._sources = array("Q")

    def _has_shared(self) -> bool:
        """Whether another optimizer takes one of the gradients, too."""
        if self._sharings != GradientSlot.sharings:
            self._sharings = GradientSlot.sharings
            self._is_shared = any(slot.others for slot in self.slots)
        return self._is_shared

    def _can_copy(self, grads: Sequence[Any]) -> bool:
        """Whether a copy of their memory is a copy of the gradients."""
        return (
            self._is_contiguous
            and not self._has_shared()
            and set(map(type, grads)) == {torch.Tensor}
            and set(map(_layout_of, grads)) == {torch.strided}
            and set(map(_dtype_of, grads)) == self._dtypes
            and not any(map(_requires_grad, grads))
            and all(map(torch.Tensor.is_contiguous, grads))
            and not any(map(torch.Tensor.is_neg, grads))
        )
