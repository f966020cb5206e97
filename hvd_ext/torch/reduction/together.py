"""Short gradients, copied into the arena together.

Copying a short gradient takes less time than the call in Python that does it. So short gradients
wait until their bucket has all of its gradients, or until backward ends, and one call copies them.
Until then `.grad` is autograd's tensor. A bucket of only many short gradients has hooks only at its
ends, once a step has shown the order of the gradients (see `Ends`), and the sums of the gradients
between the ends are copied back (see `Batch`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hvd_ext.torch.reduction.ends import Ends
from hvd_ext.torch.torch_internals import after_backward, copy_all

if TYPE_CHECKING:
    import torch

    from hvd_ext.torch.reduction.batch import Batch
    from hvd_ext.torch.reduction.hooks import Hooks
    from hvd_ext.torch.reduction.slot import BucketState, GradientSlot

# With fewer gradients in a bucket, two hooks and looking up the others save no time.
_LEAST_GRADIENTS = 8


class Together:
    """The short gradients of one reducer.

    Attributes:
        learns: whether this step notes the order in which backward makes them.
    """

    def __init__(self, copies_back: bool) -> None:
        """Start with no slots.

        Args:
            copies_back: whether sums may be copied to the memory in which autograd made the
                gradients.
        """
        self.learns = False
        self._copies_back = copies_back
        self._waiting: list[GradientSlot] = []
        self._orders: dict[BucketState, list[GradientSlot]] = {}
        self._ends: dict[BucketState, Ends] = {}
        self._batches: list[Batch] = []  # that are in the arena
        self._outside: Sequence[GradientSlot] = ()
        self._outside_of: tuple[object, ...] = ()

    def take(self, slot: GradientSlot, bucket: BucketState, bring_in: Callable[[], None]) -> None:
        """Take a gradient, which then counts as the bucket's.

        Args:
            slot: the slot whose gradient autograd has made.
            bucket: the slot's bucket.
            bring_in: called when backward ends, if no bucket was complete before.
        """
        if not self._waiting:
            after_backward(bring_in)
        self._add([slot], bucket)
        if self.learns:
            self._orders.setdefault(bucket, []).append(slot)
        elif ends := self._ends.get(bucket):
            others_are_there = ends.take(slot)
            if others_are_there is None:
                self._ends.pop(bucket).restore()
            elif others_are_there:
                self._take_batch(ends.batch, bucket)

    def bring_in(self, fill: Callable[[GradientSlot], None]) -> None:
        """Copy the waiting gradients into the arena; see `bring_in` below."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            bring_in(waiting, fill)

    def check_untouched(self) -> None:
        """Check gradients that will be copied back, like GradientSlot.check_untouched."""
        for batch in self._batches:
            if changed := batch.find_changed():
                raise changed.complaint()

    def outside_batches(self, slots: Sequence[GradientSlot]) -> Sequence[GradientSlot]:
        """Return the reducer's slots that no batch has copied into the arena in this step."""
        if not self._batches:
            return slots
        known = (len(slots), *self._batches)
        if known != self._outside_of:  # usually the same in each step
            inside = {slot.index for batch in self._batches for slot in batch.slots}
            self._outside = [slot for slot in slots if slot.index not in inside]
            self._outside_of = known
        return self._outside

    def give_back(self) -> None:
        """Copy the sums of the batches from the arena back to `.grad`."""
        for batch in self._batches:
            batch.give_back()

    def choose_hooks(self, hooks: Hooks) -> None:
        """Keep two hooks in each bucket that has many short gradients.

        Args:
            hooks: hooks of the reducer, which has taken a step in which `learns` was set.
        """
        for bucket, order in self._orders.items():
            whole = len(order) == len(bucket.layout.spans) >= _LEAST_GRADIENTS
            if whole and not any(slot.others for slot in order):
                self._ends[bucket] = Ends(order, hooks)
        self._orders.clear()

    def restore_hooks(self) -> None:
        """Restore the hooks of all gradients."""
        for ends in self._ends.values():
            ends.restore()
        self._ends.clear()
        self._outside, self._outside_of = (), ()

    def forget(self) -> None:
        """Forget the gradients of this step."""
        self._waiting.clear()
        for ends in self._ends.values():
            ends.forget()
        for batch in self._batches:
            batch.forget()
        self._batches.clear()

    def _add(self, slots: Sequence[GradientSlot], bucket: BucketState) -> None:
        for slot in slots:
            slot.passes_left = 0
        bucket.missing -= len(slots)
        self._waiting += slots

    def _take_batch(self, batch: Batch, bucket: BucketState) -> None:
        if self._copies_back and batch.bring_in(self._batches):
            self._batches.append(batch)
            bucket.missing -= len(batch.slots)
        else:
            batch.forget()
            self._add(batch.slots, bucket)


def bring_in(waiting: Sequence[GradientSlot], fill: Callable[[GradientSlot], None]) -> None:
    """Copy gradients into the arena and note their state; from now on they are exchanged.

    Args:
        waiting: slots whose gradients autograd has made.
        fill: copies a single gradient, of any kind.

    Raises:
        UsageError: a gradient has another dtype than before, or is sparse too late.
    """
    views: list[torch.Tensor] = []
    grads: list[torch.Tensor] = []
    copied: list[GradientSlot] = []
    for slot in waiting:
        grad = slot.parameter.grad
        if (
            grad is None
            or grad.is_sparse
            or grad.dtype is not slot.view.dtype
            or slot.sparse
            or slot.others
        ):
            fill(slot)
            slot.hand_over()
        elif grad.data_ptr() == slot.address and not grad.requires_grad:
            slot.hand_over()
        else:
            views.append(slot.view)
            grads.append(grad)
            copied.append(slot)
    if copied:
        copy_all(views, grads)
    for slot in copied:
        slot.hand_over_copy()
