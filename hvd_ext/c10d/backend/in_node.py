"""A group whose ranks share one node's memory: every collective goes through one window."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from hvd_ext.c10d import collectives
from hvd_ext.c10d.backend.carrier import SETTING
from hvd_ext.c10d.collectives import AgreedError
from hvd_ext.c10d.staged import PIECE_BYTES, Staged, pieces
from hvd_ext.errors import HvdExtError
from hvd_ext.job.stalls import StallMonitor
from hvd_ext.shm.layout import LINE_BYTES
from hvd_ext.shm.window import CollectivesDifferError

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.job.topology import Topology

T = TypeVar("T")
# After so long it is known who is late, and an abort is seen.
_SLICE_S = 0.1
_ALL_REDUCE, _BROADCAST, _ALL_TO_ALL, _BARRIER = map(
    collectives.step, ("all_reduce", "broadcast", "all_to_all", "barrier")
)


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
        self._late: list[int] = []
        self._aborted = False
        hosts, ranks = self._hosts, self._ranks

        def monitor(name: str, limit_s: float) -> StallMonitor:
            return StallMonitor(hosts, ranks, limit_s, name, SETTING)

        # To make one takes a tenth of a short collective's time, and they serve again.
        self._monitor_of = functools.lru_cache(maxsize=64)(monitor)
        self._outside = self._window.outside(PIECE_BYTES)

    def expect(self, name: str, limit_s: float, about: int) -> None:
        self._name, self._about, self._late = name, about, []
        self._monitor = self._monitor_of(name, limit_s)

    def _sliced(self, wait: Callable[[float], T]) -> Callable[[float], T]:
        def slice_(limit_s: float) -> T:
            if self._aborted:
                raise HvdExtError(f"{self._name}: the process group was aborted")
            try:
                return wait(min(limit_s, _SLICE_S))
            except TimeoutError as late:
                self._late = late.args[0]
                raise

        return slice_

    def missing(self) -> list[int]:
        return [self._ranks[rank] for rank in self._late]

    def all_reduce(self, array: Array, dtype: str, operation: str, scale: float) -> str:
        self._note(array.nbytes, _ALL_REDUCE)
        outside = self._outside
        outside.begin(array.ctypes.data, len(array), dtype, operation, scale, self._ticket)
        try:
            self._wait(self._run_outside)
        finally:
            self._ticket = outside.ticket
        return "shared_memory"

    def _run_outside(self, limit_s: float) -> None:
        try:
            self._outside.run(limit_s)
        except CollectivesDifferError:
            self._ticket = self._outside.ticket  # in which ranks differ
            raise

    def broadcast(self, array: Array, root: int) -> None:
        for begin in pieces(len(array), PIECE_BYTES):
            part = array[begin : begin + PIECE_BYTES]
            _, place = self._next()
            piece = self._memories[root][place : place + len(part)]
            if self.rank == root:
                piece[:] = part
            self._meet(len(array), _BROADCAST)
            if self.rank != root:
                part[:] = piece

    def all_to_all(self, outs: Sequence[Array], owns: Sequence[Array]) -> None:
        longest = self._agree_on_bytes(outs, owns)
        cell = PIECE_BYTES // self.size // LINE_BYTES * LINE_BYTES
        for begin in range(0, longest, cell):
            _, place = self._next()
            for rank, own in enumerate(owns):
                part = own[begin : begin + cell]
                at = place + rank * cell
                self._memories[self.rank][at : at + len(part)] = part
            self._meet(longest, _ALL_TO_ALL)
            at = place + self.rank * cell
            for out, memory in zip(outs, self._memories, strict=True):
                part = out[begin : begin + cell]
                part[:] = memory[at : at + len(part)]

    def _agree_on_bytes(self, outs: Sequence[Array], owns: Sequence[Array]) -> int:
        """The most that a rank gives to another; collective.

        Raises:
            MismatchError: on every rank, if one gives another less or more than that one expects.
        """
        mine = np.array([*map(len, owns), *map(len, outs)], np.int64)
        every = self._gather_numbers(mine, 0, _ALL_TO_ALL)
        given = every[:, : self.size]
        check_bytes(self._name, given, every[:, self.size :].T, self._ranks)
        return int(given.max())

    def barrier(self) -> None:
        self._next()
        self._meet(0, _BARRIER)

    def abort(self) -> None:
        self._aborted = True

    def close(self, finished: bool) -> None:
        """Let the memory go, which ends with the last rank that has it."""
        if finished:
            self._memories.clear()
            del self._window
            del self._outside


def check_bytes(name: str, given: Array, taken: Array, ranks: Sequence[int]) -> None:
    """Compare what ranks give each other with what they expect.

    Args:
        name: of the collective.
        given: (giver, taker), in bytes.
        taken: likewise, what the taker expects.
        ranks: global, of the group's.

    Raises:
        MismatchError: they differ; the ranks stay in step.
    """
    if (given != taken).any():
        giver, taker = (int(indices[0]) for indices in np.nonzero(given != taken))
        raise AgreedError(
            f"{name}: rank {ranks[giver]} gives rank {ranks[taker]} {given[giver, taker]} bytes, "
            f"and that one expects {taken[giver, taker]}: make the sizes match"
        )
