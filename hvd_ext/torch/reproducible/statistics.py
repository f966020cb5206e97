"""Running averages of batch norm, updated by slot: those of a step, in the order of the slots.

A batch norm updates its averages in every forward pass, so they would depend on the slots that a
rank has run. Here the momentum is 1 while the module runs, so each pass leaves its own mean and
variance, and the averages take those of all slots after the step's last slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hvd_ext.errors import UsageError

# The number of a module, the increase of its batch count, and the mean and the variance of a batch.
Found = tuple[int, int, Tensor, Tensor]

# Stands for the variance of a batch until there is one.
_NO_VARIANCE = -1.0


class SlotStatistics:
    """The modules of a model that keep running averages."""

    def __init__(self, model: nn.Module) -> None:
        """Watch them from now on.

        Raises:
            UsageError: a module computes statistics over ranks.
        """
        for name, module in model.named_modules():
            if any(kind.__name__ == "SyncBatchNorm" for kind in type(module).__mro__):
                raise UsageError(
                    f"{name!r} is a SyncBatchNorm, whose statistics depend on the number of ranks: "
                    "use BatchNorm, which takes those of each slot"
                )
        self._norms: list[Any] = [
            module
            for module in model.modules()
            if getattr(module, "running_mean", None) is not None and hasattr(module, "momentum")
        ]
        self._found: list[Found] | None = None
        self._kept: dict[int, tuple[float | None, Tensor, Tensor, Tensor | None]] = {}
        for number, norm in enumerate(self._norms):
            norm.register_forward_pre_hook(lambda norm, _, at=number: self._before(at, norm))
            # A checkpoint ends its recomputation by an exception, in the middle of a module.
            norm.register_forward_hook(
                lambda norm, _, __, at=number: self._after(at, norm), always_call=True
            )

    @contextmanager
    def of_slot(self) -> Iterator[list[Found]]:
        """Return a context in which modules note a slot's statistics, in the order of the calls."""
        found: list[Found] = []
        self._found = found
        try:
            yield found
        finally:
            self._found = None
            for number in list(self._kept):  # no hook follows a Ctrl-C
                self._restore(number)

    def update(self, of_slots: Sequence[Sequence[Found]]) -> None:
        """Update the running averages with the statistics of all slots, in their order."""
        for found in of_slots:
            for number, counted, *statistics in found:
                norm = self._norms[number]
                if counted:
                    norm.num_batches_tracked.add_(counted)
                share = norm.momentum
                if share is None:  # a cumulative average: all batches have the same weight
                    share = 1.0 / float(norm.num_batches_tracked) if counted else 0.0
                for average, new in zip(
                    (norm.running_mean, norm.running_var), statistics, strict=True
                ):
                    average.mul_(1.0 - share).add_(new * share)

    def _before(self, number: int, norm: Any) -> None:
        # A copy of the model has these hooks, too.
        if self._found is not None and norm.training and norm is self._norms[number]:
            # New tensors, because backward needs the values that forward has used.
            count = norm.num_batches_tracked
            self._kept[number] = (norm.momentum, norm.running_mean, norm.running_var, count)
            norm.running_mean = torch.zeros_like(norm.running_mean)
            norm.running_var = torch.full_like(norm.running_var, _NO_VARIANCE)
            norm.num_batches_tracked = None if count is None else torch.zeros_like(count)
            norm.momentum = 1.0

    def _after(self, number: int, norm: Any) -> None:
        if self._found is None or number not in self._kept or norm is not self._norms[number]:
            return
        mean, variance, count = norm.running_mean, norm.running_var, norm.num_batches_tracked
        if (variance != _NO_VARIANCE).any():  # the module has run up to here, whatever ended it
            self._found.append((number, 0 if count is None else int(count), mean, variance))
        self._restore(number)

    def _restore(self, number: int) -> None:
        norm = self._norms[number]
        kept = self._kept.pop(number)
        norm.momentum, norm.running_mean, norm.running_var, norm.num_batches_tracked = kept
