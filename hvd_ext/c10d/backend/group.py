"""The process group as torch sees it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch import Tensor

from hvd_ext.c10d.backend.core import collective
from hvd_ext.c10d.backend.reducing import Reducing
from hvd_ext.c10d.backend.tensors import check
from hvd_ext.c10d.backend.work import Together, Work
from hvd_ext.c10d.torch_internals import untraced
from hvd_ext.errors import StallError, UsageError


class Group(Reducing):
    """The ranks of one process group: all of torch's collectives, and point to point."""

    @collective
    def barrier(self, opts: Any = None) -> Work:
        """Wait until every rank is here."""
        return self._begin("barrier()", [], [], self._carrier.barrier, opts)

    @untraced
    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait until every rank is here, and name those that are not.

        Args:
            timeout: a timedelta, or torch's options; by default the group's.
            wait_all_ranks: all missing ranks are always named.

        Raises:
            StallError: on every rank that arrived.
        """
        self._check_open("monitored_barrier()")
        limit = timeout if isinstance(timeout, timedelta) else getattr(timeout, "timeout", None)
        try:
            self._messages.meet(self._limit_s(limit))
        except StallError as error:
            if not error.ranks:
                raise
            # Gloo's words, for which programs may look; its ranks are those of the group.
            first = self._ranks.index(error.ranks[0])
            words = f"Rank {first} failed to pass monitoredBarrier"
            raise StallError(f"{words}: {error}", error.ranks) from None

    @untraced
    def send(self, tensors: list[Tensor], peer: int, tag: int = 0) -> Work:
        """Begin to send a tensor to a rank of the group."""
        return self._message("send()", tensors, lambda t: self._messages.send(t, peer, tag))

    @untraced
    def recv(self, tensors: list[Tensor], peer: int, tag: int = 0) -> Work:
        """Begin to receive a tensor from a rank of the group."""
        return self._message("recv()", tensors, lambda t: self._messages.receive(t, peer, tag))

    @untraced
    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        """Begin to receive a tensor from whichever rank sends one."""
        return self._message("recv()", tensors, lambda t: self._messages.receive(t, None, tag))

    def _message(self, name: str, tensors: list[Tensor], begin: Callable[[Tensor], Work]) -> Work:
        self._check_open(name)
        check(name, tensors)
        if len(tensors) != 1:
            raise UsageError(f"{name} of {len(tensors)} tensors: call it for each")
        message = begin(tensors[0])
        if self._together is not None:
            self._together.append(message)
        return message

    @untraced
    def start_coalescing(self) -> None:
        """Have `end_coalescing` answer for what begins from now on."""
        self._together = []

    @untraced
    def end_coalescing(self) -> Together:
        """The work that has begun since."""
        works, self._together = self._together or [], None
        return Together(works)

    # The names that torch had for these before 2.13.
    _allgather_base = Reducing.all_gather_single
    allgather_into_tensor_coalesced = Reducing.all_gather_single_coalesced
    _reduce_scatter_base = Reducing.reduce_scatter_single
    reduce_scatter_tensor_coalesced = Reducing.reduce_scatter_single_coalesced
    alltoall_base = Reducing.all_to_all_single
