"""Short gradients, brought into the arena together.

A short one is copied in less time than Python takes to ask for it. Those that autograd has made
wait until a bucket has all of its gradients, or until backward ends, and one call copies them.
Until then `.grad` is autograd's tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hvd_ext.torch.torch_internals import copy_all

if TYPE_CHECKING:
    import torch

    from hvd_ext.torch.reduction.slot import GradientSlot


def bring_in(waiting: Sequence[GradientSlot], fill: Callable[[GradientSlot], None]) -> None:
    """Copy gradients into the arena, and remember each: from now on it is being exchanged.

    Args:
        waiting: those that autograd has made.
        fill: brings in a single one, of any kind.

    Raises:
        UsageError: one of them has another dtype than before, or is sparse too late.
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
