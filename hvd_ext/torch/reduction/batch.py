"""Short gradients of one bucket that are copied together, into the arena and out of it.

Making a view of the arena for `.grad` takes longer than copying a short gradient. So short
gradients stay where autograd has made them: they are copied into the arena when the bucket is
complete, and the sums are copied back at the end of the step. A hash of each gradient's bytes shows
whether something changed it during the exchange. This is faster than an `InFlight` for each
gradient.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import attrgetter, is_
from typing import Any

import numpy as np
import torch

from hvd_ext.shm.copies import copy_each, digest_each
from hvd_ext.torch.reduction.slot import GradientSlot

_grad_of, _layout_of, _dtype_of, _requires_grad = map(
    attrgetter, ("grad", "layout", "dtype", "requires_grad")
)
_NONE = type(None)


class Batch:
    """The gradients of a bucket that are copied together.

    A step uses only the lists here and does not visit the slots: visiting thousands of them takes
    longer than copying their gradients.

    Attributes:
        slots: slots of the gradients.
    """

    def __init__(self, slots: Sequence[GradientSlot]) -> None:
        """Take slots that have places in the arena."""
        self.slots = slots
        self._parameters = [slot.parameter for slot in slots]
        self._places = array("Q", [slot.address for slot in slots])
        self._lengths = array("Q", [slot.view.nbytes for slot in slots])
        self._dtypes = {slot.view.dtype for slot in slots}
        self._sharings, self._is_shared = -1, False
        self._is_contiguous = all(slot.view.is_contiguous() for slot in slots)
        # This step's gradients, and, once they are copied, their addresses and digests.
        self._grads: Sequence[Any] = ()
        self._sources = array("Q")
        self._digests = array("Q")

    def have_no_gradient(self) -> bool:
        """Whether no slot has a gradient."""
        return set(map(type, map(_grad_of, self._parameters))) == {_NONE}

    def collect(self) -> bool:
        """Look up this step's gradients; returns whether every slot has one."""
        grads = list(map(_grad_of, self._parameters))
        if _NONE in map(type, grads):
            return False
        self._grads = grads
        return True

    def bring_in(self, others: Sequence[Batch]) -> bool:
        """Copy the collected gradients into the arena; from now on they are exchanged.

        Args:
            others: batches that are exchanged already.

        Returns:
            Whether they were copied. They are not if one has another memory order than in the
            arena, or is not only autograd's.
        """
        if not self._can_copy(self._grads):
            return False
        sources = _addresses(self._grads)
        # A gradient that is known to be zero may have no memory. Of two gradients that share
        # memory, such as views of one tensor, only the last would keep its sum.
        batches = [
            (sources, self._lengths),
            *((other._sources, other._lengths) for other in others),
        ]
        if 0 in sources or _share_memory(batches):
            return False
        self._sources = sources
        copy_each(self._places, sources, self._lengths)
        self._digests = digest_each(sources, self._lengths)
        return True

    def find_changed(self) -> GradientSlot | None:
        """Return a slot whose gradient was written to since `bring_in`."""
        # Hashing one gradient at a time would take three times as long.
        same = list(map(is_, map(_grad_of, self._parameters), self._grads))
        if not all(same):
            return self.slots[same.index(False)]
        addresses = _addresses(self._grads)
        if addresses != self._sources:
            return self.slots[_first_difference(addresses, self._sources)]
        digests = digest_each(self._sources, self._lengths)
        if digests != self._digests:
            return self.slots[_first_difference(digests, self._digests)]
        return None

    def give_back(self) -> None:
        """Copy the sums in the arena back to the gradients."""
        copy_each(self._sources, self._places, self._lengths)

    def forget(self) -> None:
        """Forget this step's gradients."""
        self._grads = ()
        self._sources = self._digests = array("Q")

    def _has_shared(self) -> bool:
        """Whether another optimizer also takes one of the gradients."""
        if self._sharings != GradientSlot.sharings:
            self._sharings = GradientSlot.sharings
            self._is_shared = any(slot.others for slot in self.slots)
        return self._is_shared

    def _can_copy(self, grads: Sequence[Any]) -> bool:
        """Whether copying their memory copies the gradients."""
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


def _addresses(tensors: Sequence[torch.Tensor]) -> array[int]:
    return array("Q", map(torch.Tensor.data_ptr, tensors))


def _share_memory(batches: Sequence[tuple[array[int], array[int]]]) -> bool:
    """Whether any two gradients overlap, given their addresses and lengths by batch."""
    begins, lengths = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    order = begins.argsort()
    begins, ends = begins[order], (begins + lengths)[order]
    return bool((ends[:-1] > begins[1:]).any())


def _first_difference(one: array[int], other: array[int]) -> int:
    return next(index for index, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
