"""A gradient while it is exchanged: whatever writes to it is noticed.

Peers write their sums into the arena's memory at any time between backward() and synchronize(),
and `.grad` is a view of that memory. A rank that writes there too, before or after a peer does,
ends with other sums than its peers. torch counts a tensor's versions, so `GradientSlot` notices
`p.grad.clamp_()`; but a tensor that `.data` gives has a counter that starts again, and what
NumPy writes is not counted. So a gradient in flight has a class that differs in these two.
"""

from __future__ import annotations

import copy
from typing import Any

import torch


class InFlight(torch.Tensor):
    """A tensor whose `.data` counts versions with it, and whose NumPy arrays are read-only.

    Objects are not made but turned into it by their `__class__`, and back: that takes some 60 ns,
    and operations give plain tensors, as a Parameter's do.
    """

    __torch_function__ = torch.nn.Parameter.__torch_function__

    @property
    def data(self) -> Any:
        """As torch's, but writing to it is writing to this tensor."""
        data = self.detach()
        data.__class__ = InFlight
        return data

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]

    def numpy(self, *, force: bool = False) -> Any:
        """As torch's, but read-only."""
        array = super().numpy(force=force)
        array.flags.writeable = False
        return array

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return copy.deepcopy(self.detach(), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.detach().__reduce_ex__(protocol)
