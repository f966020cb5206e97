"""The interface to whatever sends and receives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from hvd_ext.c10d.backend.work import Work


class PointToPoint(Protocol):
    """The sends and receives of one group, in any order."""

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> Work:
        """Begin to send a tensor to a rank of the group."""

    def receive(self, tensor: torch.Tensor, peer: int | None, tag: int) -> Work:
        """Begin to receive a tensor from a rank of the group; None: from any."""

    def meet(self, limit_s: float) -> None:
        """Wait until every rank is here, or raise an error that names those that are not."""

    def close(self) -> None:
        """Give up what is under way still."""
