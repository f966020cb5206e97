"""Copies in place of torch's views, which are right until one of the two is changed in place."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from hvd_ext.spatial.torch_internals import changes
from hvd_ext.spatial.unsupported import UnsupportedError, name_of


class Copies:
    """The copies of a tensor's cells that were made where torch would have made views.

    An in-place change of a view changes both tensors; an in-place change of a copy changes only
    one. So once a copy was changed, operations refuse the tensor; and while a copy exists, they
    refuse to change the tensor.
    """

    def __init__(self) -> None:
        self._made: list[tuple[weakref.ref[Tensor], Tensor, int]] = []

    def add(self, copy: Tensor, cells: Tensor) -> None:
        """Watch `copy`, whose memory is that of `cells`."""
        witness = cells.detach()
        # Keeps the count of changes, which views of the same memory share, but not the memory.
        witness.data = cells.new_empty(0)
        self._made.append((weakref.ref(copy), witness, changes(witness)))

    def check(self, function: Any) -> None:
        """Refuse the tensor if a copy of it was changed."""
        if any(changes(witness) != version for _, witness, version in self._made):
            raise UnsupportedError(
                f"{name_of(function)} of a split tensor, after what was flattened or viewed of it "
                "was changed in place: of split dims that is a copy, where torch has a view; "
                "leave out inplace=True"
            )

    def refuse_change(self, function: Any) -> None:
        """Refuse to change the tensor in place while a copy exists."""
        if any(copy() is not None for copy, _, _ in self._made):
            raise UnsupportedError(
                f"{name_of(function)} changes a split tensor in place that was flattened or viewed "
                "before: of split dims that is a copy, where torch has a view; leave out inplace"
            )


def countable(whole: Tensor) -> Tensor:
    """Return `whole` as a tensor whose changes torch counts, also in inference mode."""
    if not whole.is_inference():
        return whole
    with torch.inference_mode(False):
        return whole.clone()
