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
from hvd_ext.shm.layout import LINE_BYTES, align_up
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
        # How much each gives and expects lies before the first cells, so that a short one takes
        # one wait.
        head = align_up(2 * self.size * 8)
        cell = (PIECE_BYTES - head) // self.size // LINE_BYTES * LINE_BYTES
        longest, begin = 1, 0
        while begin < longest:
            _, place = self._next()
            own_memory = self._memories[self.rank]
            numbers = slice(place, place + 2 * self.size * 8)
            if begin == 0:
                own_memory[numbers].view(np.int64)[:] = [*map(len, owns), *map(len, outs)]
            for rank, own in enumerate(owns):
                part = own[begin : begin + cell]
                at = place + head + rank * cell
                own_memory[at : at + len(part)] = part
            self._meet(0, _ALL_TO_ALL)
            if begin == 0:
                every = [memory[numbers].view(np.int64).tolist() for memory in self._memories]
                check_bytes(self._name, every, self._ranks)
                longest = max(map(max, every))
            at = place + head + self.rank * cell
            for out, memory in zip(outs, self._memories, strict=True):
                part = out[begin : begin + cell]
                part[:] = memory[at : at + len(part)]
            begin += cell

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


def check_bytes(name: str, every: Sequence[Sequence[int]], ranks: Sequence[int]) -> None:
    """Compare what ranks give each other with what they expect.

    Args:
        name: of the collective.
        every: of each rank, how many bytes it gives to each, then how many it expects from each.
        ranks: global, of the group's.

    Raises:
        MismatchError: they differ; the ranks stay in step.
    """
    size = len(every)
    for giver, numbers in enumerate(every):
        taken = [theirs[size + giver] for theirs in every]
        if numbers[:size] == taken:
            continue
        taker = next(rank for rank in range(size) if numbers[rank] != taken[rank])
        raise AgreedError(
            f"{name}: rank {ranks[giver]} gives rank {ranks[taker]} {numbers[taker]} bytes, "
            f"and that one expects {taken[taker]}: make the sizes match"
        )
