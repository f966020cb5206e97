"""A group of several nodes, or of ranks that cannot share memory: by the engine, over MPI.

MPI does not compare what its ranks call. So each collective begins with an allreduce of a number,
which takes as long as the shortest message: where ranks are in different collectives, or one has
failed, all of them know before anything is sent. The number is a digest of the collective times a
factor of the rank; factors add up to zero, and so do the numbers of ranks that agree. Ranks that
do not agree add up to zero with a probability of 2^-64.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.c10d import collectives
from hvd_ext.c10d.backend.carrier import SETTING
from hvd_ext.c10d.backend.one_node import check_bytes
from hvd_ext.engine.two_level import TwoLevel
from hvd_ext.errors import HvdExtError

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.job.topology import Topology

_TEXT_BYTES = 512
_WORD = 2**64 - 1


class ByMessages:
    """A Carrier by the engine's collectives, which ranks compare before they begin."""

    name = "hierarchical"

    def __init__(self, topology: Topology, timeout_s: float) -> None:
        """Make memory and communicators; collective over the group.

        Args:
            topology: the group's.
            timeout_s: how long a call may take before the job ends.
        """
        self._engine = TwoLevel(topology, timeout_s, SETTING)
        self._ranks, self._hosts = topology.ranks, topology.hosts_by_rank
        self.rank, self.size = self._engine.rank, self._engine.size
        self._name, self._about = "", 0
        factors = [_digest(rank) | 1 for rank in range(1, self.size)]
        self._factor = factors[self.rank - 1] if self.rank else -sum(factors)
        self._parted = False  # all ranks know that they are out of step

    def expect(self, name: str, limit_s: float, about: int) -> None:
        """Note the next call; the watchdog has the group's own limit."""
        self._name, self._about = name, about

    def missing(self) -> Sequence[int]:
        return ()

    def all_reduce(self, array: Array, dtype: str, operation: str, scale: float) -> str:
        self._meet("all_reduce", array.nbytes)
        return self._engine.all_reduce(array, dtype, operation, scale)

    def reduce_scatter(
        self, out: Array, own: Array, dtype: str, scale: float, operation: str = "sum"
    ) -> None:
        self._meet("reduce_scatter", out.nbytes)
        self._engine.reduce_scatter(out, own, dtype, scale, operation)

    def all_gather(self, out: Array, own: Array) -> None:
        self._meet("all_gather", own.nbytes)
        self._engine.all_gather(out, own)

    def all_gather_rows(self, rows: Sequence[Array], own: Array) -> None:
        self._meet("all_gather", own.nbytes)
        self._engine.all_gather_rows(rows, own)

    def broadcast(self, array: Array, root: int) -> None:
        self._meet("broadcast", array.nbytes)
        self._engine.broadcast(array, root)

    def all_to_all(self, outs: Sequence[Array], owns: Sequence[Array]) -> None:
        # Each length counts once for who gives, and once, negative, for who expects it.
        given = sum(_digest(self.rank, to, len(own)) for to, own in enumerate(owns))
        expected = sum(_digest(giver, self.rank, len(out)) for giver, out in enumerate(outs))
        if not self._meet("all_to_all", 0, given - expected):
            mine = np.array([*map(len, owns), *map(len, outs)], np.int64)
            every = np.empty((self.size, len(mine)), np.int64)
            self._gather(mine, every)
            check_bytes(self._name, every.tolist(), self._ranks)
        self._engine.all_to_all(outs, owns)

    def barrier(self) -> None:
        self._meet("barrier", 0)

    def refuse(self, why: str) -> None:
        """Take part in the next comparison with what no other rank has."""
        self._compare(0, collectives.FAILED, why)

    def fail(self, why: str) -> None:
        """The same, not on this thread: other ranks may come late, or never."""
        if not self._parted:
            self._parted = True
            threading.Thread(target=self._tell, args=(why,), daemon=True).start()

    def _tell(self, why: str) -> None:
        with suppress(HvdExtError):  # this rank's own
            self.refuse(why)

    def _meet(self, step: str, count_bytes: int, lengths: int = 0) -> bool:
        return self._compare(count_bytes, self._about | collectives.step(step), lengths=lengths)

    def _compare(self, count_bytes: int, about: int, why: str = "", lengths: int = 0) -> bool:
        """Wait until all ranks have come, for the same collective.

        Args:
            count_bytes: of it, if all ranks have the same.
            about: of `collectives`, with the step.
            why: this rank failed, if it did.
            lengths: a number; those of all ranks add up to 0 if lengths match.

        Returns:
            Whether lengths match, too; the same on every rank.

        Raises:
            MismatchError: on every rank, if they are in different ones.
            HvdExtError: likewise, if one has failed.
        """
        number = _digest(count_bytes, about) * self._factor + lengths
        if self._engine.sum_of(number & _WORD) == 0:
            return True
        called = np.empty((self.size, 2), np.uint64)
        self._gather(np.array([count_bytes, about], np.uint64), called)
        if (called == called[0]).all() and about != collectives.FAILED:
            return False
        said = (why or collectives.describe(count_bytes, about, self._ranks)).encode()
        mine, texts = np.zeros(_TEXT_BYTES, np.uint8), np.empty((self.size, _TEXT_BYTES), np.uint8)
        mine[: len(said)] = np.frombuffer(said[:_TEXT_BYTES], np.uint8)
        self._gather(mine, texts)
        self._parted = True
        words = [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in texts]
        if late := np.flatnonzero(called[:, 1] == collectives.FAILED).tolist():
            raise HvdExtError(collectives.failed(self._name, words.__getitem__, self._ranks, late))
        raise collectives.differ(words, self._ranks, self._hosts)

    def abort(self) -> None:
        """MPI's calls cannot be ended: the watchdog ends the job, if it comes to that."""

    def close(self, finished: bool) -> None:
        self._engine.close(finished)

    def _gather(self, own: Array, every: Array) -> None:
        self._engine.all_gather(every.reshape(-1).view(np.uint8), own.reshape(-1).view(np.uint8))


def _digest(*numbers: int) -> int:
    found = 0
    for number in numbers:
        found = (found ^ number) * 0x9E3779B97F4A7C15 & _WORD
        found ^= found >> 32
    return found
