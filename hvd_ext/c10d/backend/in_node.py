"""A group whose ranks share one node's memory: every collective goes through one window."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from hvd_ext.c10d.backend.carrier import SETTING
from hvd_ext.c10d.staged import PIECE_BYTES, Staged
from hvd_ext.errors import HvdExtError, MismatchError
from hvd_ext.job.stalls import StallMonitor
from hvd_ext.shm.layout import LINE_BYTES

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.job.topology import Topology

T = TypeVar("T")
# After so long it is known who is late, and an abort is seen.
_SLICE_S = 0.1


class InNode(Staged):
    """A Carrier in the node's memory."""

    name = "shared_memory"

    def __init__(self, topology: Topology, timeout_s: float) -> None:
        """Make the window; collective over the group.

        Args:
            topology: the group's, of one node.
            timeout_s: how long ranks are waited for.

        Raises:
            WindowError: on every rank, if some cannot share memory.
        """
        super().__init__(topology, timeout_s)
        self._ranks = topology.node_ranks()
        self._hosts = topology.hosts_by_rank
        self._late: list[int] = []
        self._name = ""
        self._aborted = False

    def expect(self, name: str, limit_s: float) -> None:
        self._name, self._late = name, []
        monitor = StallMonitor(self._hosts, self._ranks, limit_s, name, SETTING)
        self._monitored = functools.partial(self._wait, monitor)

    def _wait(self, monitor: StallMonitor, wait: Callable[[float], T]) -> T:
        def slice_(limit_s: float) -> T:
            if self._aborted:
                raise HvdExtError(f"{self._name}: the process group was aborted")
            try:
                return wait(min(limit_s, _SLICE_S))
            except TimeoutError as late:
                self._late = late.args[0]
                raise

        return monitor(slice_)

    def missing(self) -> list[int]:
        return [self._ranks[rank] for rank in self._late]

    def all_reduce(self, array: Array, dtype: str, operation: str, scale: float) -> str:
        most = PIECE_BYTES // array.itemsize
        for begin in range(0, len(array), most):
            part = array[begin : begin + most]
            ticket, place = self._next()
            piece = self._memories[self.rank][place : place + part.nbytes].view(part.dtype)
            piece[:] = part
            exchange = self._window.plan(
                place, len(part), dtype, scale, local=True, operation=operation
            )
            self._monitored(functools.partial(self._window.reduce, exchange, ticket))
            self._monitored(functools.partial(self._window.finish, ticket))
            part[:] = piece
        return "shared_memory"

    def broadcast(self, array: Array, root: int) -> None:
        for begin in range(0, len(array), PIECE_BYTES):
            part = array[begin : begin + PIECE_BYTES]
            ticket, place = self._next()
            piece = self._memories[root][place : place + len(part)]
            if self.rank == root:
                piece[:] = part
            self._monitored(functools.partial(self._window.meet, ticket))
            if self.rank != root:
                part[:] = piece

    def all_to_all(
        self, out: Array, out_bytes: Sequence[int], own: Array, own_bytes: Sequence[int]
    ) -> None:
        given = self._agreed_bytes(out_bytes, own_bytes)
        cell = PIECE_BYTES // self.size // LINE_BYTES * LINE_BYTES
        sources = np.split(own, np.cumsum(own_bytes)[:-1])
        targets = np.split(out, np.cumsum(out_bytes)[:-1])
        for begin in range(0, int(given.max()), cell):
            ticket, place = self._next()
            for rank, source in enumerate(sources):
                part = source[begin : begin + cell]
                at = place + rank * cell
                self._memories[self.rank][at : at + len(part)] = part
            self._monitored(functools.partial(self._window.meet, ticket))
            at = place + self.rank * cell
            for target, memory in zip(targets, self._memories, strict=True):
                part = target[begin : begin + cell]
                part[:] = memory[at : at + len(part)]

    def _agreed_bytes(self, out_bytes: Sequence[int], own_bytes: Sequence[int]) -> Array:
        """How much each rank gives each: (size, size); collective."""
        mine = np.array([own_bytes, out_bytes], np.int64)
        every = np.empty((self.size, *mine.shape), np.int64)
        self.all_gather(every.reshape(-1).view(np.uint8), mine.reshape(-1).view(np.uint8))
        given, taken = every[:, 0], every[:, 1].T
        if (given != taken).any():
            giver, taker = (int(indices[0]) for indices in np.nonzero(given != taken))
            raise MismatchError(
                f"{self._name}: rank {self._ranks[giver]} gives rank {self._ranks[taker]} "
                f"{given[giver, taker]} bytes, and that one expects {taken[giver, taker]}: "
                "make the sizes match"
            )
        return given

    def barrier(self) -> None:
        ticket, _ = self._next()
        self._monitored(functools.partial(self._window.meet, ticket))

    def abort(self) -> None:
        self._aborted = True

    def close(self, finished: bool) -> None:
        """Let the memory go, which ends with the last rank that has it."""
        if finished:
            self._memories.clear()
            del self._window
            del self._monitored  # it holds this
