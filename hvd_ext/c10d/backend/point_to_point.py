"""The interface to whatever sends and receives, and what its kinds share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hvd_ext.job.monitored_allgather import monitored_allgather
from hvd_ext.job.stalls import StallReport

if TYPE_CHECKING:
    import torch

    from hvd_ext.c10d.backend.work import Work
    from hvd_ext.errors import HvdExtError
    from hvd_ext.job.topology import Topology

_SETTING = "the timeout"


class PointToPoint(ABC):
    """The sends and receives of one group, in any order."""

    def __init__(self, topology: Topology, limit_s: float) -> None:
        """Borrow the communicator; collective over the group.

        Args:
            topology: the group's.
            limit_s: how long a message is waited for.
        """
        self._lease: Any = topology.borrow("c10d", topology.world)
        self._comm: Any = self._lease.comms[0]
        self._ranks, self._hosts = topology.ranks, topology.hosts_by_rank
        self._own = self._ranks[topology.world.rank]
        self._limit_s = limit_s

    @abstractmethod
    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> Work:
        """Begin to send a tensor to a rank of the group."""

    @abstractmethod
    def receive(self, tensor: torch.Tensor, peer: int | None, tag: int) -> Work:
        """Begin to receive a tensor from a rank of the group; None: from any."""

    def meet(self, limit_s: float) -> None:
        """Wait until every rank is here.

        Raises:
            StallError: on every rank that arrived, naming those that did not.
        """
        occasion = "monitored_barrier()"
        monitored_allgather(self._comm, None, limit_s, occasion, self._hosts, self._ranks, _SETTING)

    @abstractmethod
    def close(self) -> None:
        """Abandon the messages that are still in flight."""

    def _partners(self, peer: int | None) -> Sequence[int]:
        """The ranks, globally, to which a message may go, or from which it may come."""
        if peer is None:
            return [rank for rank in self._ranks if rank != self._own]
        return [self._ranks[peer]]

    def _late(self, awaited: str, peer: int | None) -> Callable[[str, float], HvdExtError]:
        """The error for a message that was waited for in vain, as Work's `late`.

        Args:
            awaited: what a partner has not called, such as "recv()".
            peer: the partner, in the group; None: any.
        """
        missing, own, hosts = self._partners(peer), self._own, self._hosts

        def error(_: str, waited_s: float) -> HvdExtError:
            occasion = f"the {awaited} that rank {own} waits for"
            return StallReport(missing, occasion, waited_s, setting=_SETTING).error(hosts)

        return error
