"""One parameter's gradient and its place in the arena."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from hvd_ext.arena.layout import Bucket
from hvd_ext.errors import UsageError
from hvd_ext.torch.parameters import placed_as
from hvd_ext.torch.torch_internals import InFlight, version_of

if TYPE_CHECKING:
    from hvd_ext.arena.protocol import Arena

# A longer gradient is copied at once, while it is in the cache.
_SHORT_BYTES = 16 << 10
# Slots by parameter, in all optimizers that can share it.
_slots = WeakTensorKeyDictionary()


@dataclass(eq=False)
class BucketState:
    """A bucket, and its progress in this step.

    Attributes:
        arena: the arena that reduces it.
        index: its number in the arena.
        layout: the places of its gradients.
        missing: number of gradients that this rank does not have yet.
    """

    arena: Arena
    index: int
    layout: Bucket
    missing: int


@dataclass(eq=False)
class GradientSlot:
    """One parameter's gradient.

    Attributes:
        index: its number in the reducer.
        view: its place in the arena; before it has one, a view of the parameter.
        address: address of the view's memory.
        bucket: its bucket; None if the gradient is sparse, and has no place in the arena.
        passes_left: backward passes that this step's gradient still needs.
        may_wait: whether it may be copied into the arena together with others.
        version: version of `.grad` when the exchange received it.
        ready_s: the earliest time after backward began at which it was ready.
        others: slots of the same parameter in other optimizers, as long as these exist. If there
            are any, `.grad` is not a view of an arena, and each optimizer's step puts its own sum
            there.
        sharings: how often a slot has found another slot of its parameter, in this process.
    """

    sharings: ClassVar[int] = 0

    index: int
    name: str
    parameter: torch.nn.Parameter
    view: torch.Tensor
    passes_left: int
    bucket: BucketState | None = None
    version: int = 0
    address: int = 0
    may_wait: bool = False
    sparse: bool = False
    ready_s: float = math.inf
    others: list[weakref.ref[GradientSlot]] = field(default_factory=list)

    @property
    def is_shared(self) -> bool:
        """Whether another optimizer also takes this parameter's gradient."""
        if self.others:
            self.others = [other for other in self.others if other() is not None]
        return bool(self.others)

    def find_others(self) -> None:
        """Find the other optimizers' slots of this parameter, and register this slot with them."""
        of_parameter = _slots.setdefault(self.parameter, weakref.WeakSet())
        for other in of_parameter:
            self.others.append(weakref.ref(other))
            other.others.append(weakref.ref(self))
            GradientSlot.sharings += 1
        of_parameter.add(self)
        if self.others and self.parameter.grad is not None:  # a view, so far
            self.parameter.grad = self.parameter.grad.detach().clone()

    def place(self, memory: torch.Tensor, offset_bytes: int, bucket: BucketState) -> None:
        p = self.parameter
        dtype = getattr(torch, bucket.layout.dtype)  # dtype of the sum, which may be wider
        flat = memory[offset_bytes : offset_bytes + p.numel() * dtype.itemsize]
        self.view = placed_as(p, flat.view(dtype))
        self.address = self.view.data_ptr()
        self.may_wait = p.device.type == "cpu" and flat.numel() <= _SHORT_BYTES
        self.bucket = bucket

    def displace(self) -> None:
        """Release the arena's memory."""
        self.bucket = None
        self.may_wait = False
        self.view = self.parameter.new_empty(0)

    def adopt(self) -> None:
        """Copy a gradient that autograd made elsewhere into the arena."""
        grad = self.parameter.grad
        if grad is None or grad.is_sparse or self.sparse:
            return
        if grad.dtype != self.view.dtype:
            raise UsageError(
                f"the gradient of {self.name!r} is {grad.dtype}, and was {self.view.dtype} when "
                "DistributedOptimizer() was called: convert the model before that"
            )
        # A gradient with a graph (create_graph=True) would keep the graphs of all steps alive.
        if grad.data_ptr() != self.view.data_ptr() or grad.grad_fn is not None:
            self.view.copy_(grad.detach() if grad.requires_grad else grad)
            if not (self.others and self.is_shared):
                self.parameter.grad = self.view.data

    def contribute_zeros(self) -> None:
        """Take part without a gradient."""
        self.view.zero_()
        if self.parameter.requires_grad and not self.is_shared:
            self.parameter.grad = self.view.data

    def give_copy(self) -> None:
        """Put the sum into `.grad`, which is not a view."""
        if self.parameter.requires_grad and not self.sparse:
            self.parameter.grad = self.view.clone()

    def hand_over(self) -> None:
        """Note the state of the gradient; from now on it is exchanged."""
        grad = self.parameter.grad
        if grad is None or self.sparse or self.others:
            return
        self.version = version_of(grad)
        grad.__class__ = InFlight

    def hand_over_copy(self) -> None:
        """Do the same as `hand_over` for a gradient that was copied into the view."""
        grad = self.view.data
        grad.__class__ = InFlight
        self.version = 0
        self.parameter.grad = grad

    def check_untouched(self) -> None:
        """Check that the gradient was not changed meanwhile, which would make sums differ.

        Raises:
            UsageError: it was changed.
        """
        if self.sparse or self.others:
            return
        grad = self.parameter.grad
        if grad is not None and grad.__class__ is InFlight:
            grad.__class__ = torch.Tensor  # type: ignore[assignment]
        if grad is None or grad.data_ptr() != self.address or version_of(grad) != self.version:
            raise self.complaint()

    def complaint(self) -> UsageError:
        """Return the error for a gradient that was changed while it was exchanged."""
        return UsageError(
            f"the gradient of {self.name!r} was changed between backward() and step(), while "
            "it was exchanged: call optimizer.synchronize() before, and then step() inside "
            "`with optimizer.skip_synchronize():`"
        )
