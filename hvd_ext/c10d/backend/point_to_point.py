"""The interface to whatever sends and receives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from hvd_ext.job.monitored_allgather import monitored_allgather
from hvd_ext.job.stalls import Hosts, StallReport

if TYPE_CHECKING:
    import torch

    from hvd_ext.c10d.backend.work import Work
    from hvd_ext.errors import HvdExtError

_SETTING = "the timeout"


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


def meet(comm: Any, limit_s: float, hosts: Hosts, ranks: Sequence[int]) -> None:
    """Wait until every rank of a communicator is here.

    Raises:
        StallError: on every rank that arrived, naming those that did not.
    """
    monitored_allgather(
        comm,
        None,
        limit_s,
        occasion="monitored_barrier()",
        hosts=hosts,
        ranks=ranks,
        setting=_SETTING,
    )


def late(
    awaited: str, own: int, missing: Sequence[int], hosts: Hosts
) -> Callable[[str, float], HvdExtError]:
    """The error for a message that was waited for in vain, as Work's `late`.

    Args:
        awaited: what a partner has not called, such as "recv()".
        own: this rank, globally.
        missing: the partners, globally.
        hosts: host name of every rank of the world.
    """

    def error(_: str, waited_s: float) -> HvdExtError:
        occasion = f"the {awaited} that rank {own} waits for"
        return StallReport(missing, occasion, waited_s, setting=_SETTING).error(hosts)

    return error
