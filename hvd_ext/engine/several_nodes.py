"""A group of several nodes, or of ranks that cannot share memory: over MPI.

MPI does not compare the collectives that its ranks call. So each collective begins with an
allreduce of one number, which takes as long as the shortest message. If ranks are in different
collectives, or one has failed, all ranks know it before anything is sent. The number is a digest of
the collective times a factor of the rank. The factors add up to zero, so the numbers of ranks that
agree do, too. Numbers of ranks that disagree add up to zero with a probability of 2^-64.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.allreduce.algorithms import native
from hvd_ext.allreduce.operations import OPERATIONS
from hvd_ext.dtypes import DTYPES
from hvd_ext.engine.collectives.all_gather import all_gather
from hvd_ext.engine.collectives.all_reduce import all_reduce
from hvd_ext.engine.collectives.all_to_all import all_to_all
from hvd_ext.engine.collectives.broadcast import broadcast
from hvd_ext.engine.collectives.levels import Levels
from hvd_ext.engine.collectives.reduce_scatter import reduce_scatter
from hvd_ext.engine.compared import FAILED, Describe, check_bytes, differ, failed, step
from hvd_ext.errors import HvdExtError
from hvd_ext.job.watchdog import Watchdog

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.job.topology import Topology
    from hvd_ext.shm.block import Block

_TEXT_BYTES = 512
_WORD = 2**64 - 1


class SeveralNodes:
    """A Carrier within each node by memory, and between the nodes by messages.

    If ranks are late, the watchdog ends the job and names them.
    """

    name = "hierarchical"

    def __init__(
        self, topology: Topology, timeout_s: float, describe: Describe, setting: str
    ) -> None:
        """Make the memory and the communicators; collective over the group.

        Args:
            topology: the group's topology. On one node every rank counts as a node, because such
                ranks cannot share memory.
            timeout_s: how long a call may take before the job ends.
            describe: returns words for the number that `expect` takes.
            setting: source of that time, for errors.

        Raises:
            WindowError: on every rank, if those of some node cannot share memory.
        """
        self._levels = levels = Levels(topology)
        self._watchdog = Watchdog(
            topology, levels.watched, levels.uses, timeout_s, "a collective", setting
        )
        self._ranks, self._hosts = topology.ranks, topology.hosts_by_rank
        self.rank, self.size = levels.rank, levels.size
        self._describe = describe
        self._name, self._about = "", 0
        factors = [_digest(rank) | 1 for rank in range(1, self.size)]
        self._factor = factors[self.rank - 1] if self.rank else -sum(factors)
        self._number = np.zeros(1, np.uint64)
        self._sum_numbers = native.plan(levels.comm, self._number, OPERATIONS["sum"])
        self._parted = False  # all ranks know that they are out of step

    def expect(self, name: str, limit_s: float, about: int) -> None:
        """Note the next call; the watchdog has the group's own limit."""
        self._name, self._about = name, about

    def missing(self) -> Sequence[int]:
        return ()

    def all_reduce(self, block: Block, dtype: str, operation: str, scale: float) -> str:
        with self._watchdog.guard():
            self._meet("all_reduce", block.count_bytes)
            return all_reduce(self._levels, _elements(block, dtype), dtype, operation, scale)

    def reduce_scatter(
        self, out: Block, own: Block, dtype: str, scale: float, operation: str = "sum"
    ) -> None:
        with self._watchdog.guard():
            self._meet("reduce_scatter", out.count_bytes)
            to, whole = _elements(out, dtype), _elements(own, dtype)
            reduce_scatter(self._levels, to, whole, dtype, operation, scale)

    def all_gather(self, out: Block, own: Block) -> None:
        with self._watchdog.guard():
            self._meet("all_gather", own.count_bytes)
            rows = out.array.reshape(self.size, own.count_bytes)
            all_gather(self._levels, rows, own.array)

    def all_gather_rows(self, rows: Sequence[Block], own: Block) -> None:
        with self._watchdog.guard():
            self._meet("all_gather", own.count_bytes)
            all_gather(self._levels, [row.array for row in rows], own.array)

    def broadcast(self, block: Block, root: int) -> None:
        with self._watchdog.guard():
            self._meet("broadcast", block.count_bytes)
            broadcast(self._levels, block.array, root)

    def all_to_all(self, outs: Sequence[Block], owns: Sequence[Block]) -> None:
        # The sender adds each length, and the receiver subtracts the length that it expects.
        given, taken = ([block.count_bytes for block in blocks] for blocks in (owns, outs))
        sent = sum(_digest(self.rank, to, count) for to, count in enumerate(given))
        expected = sum(_digest(giver, self.rank, count) for giver, count in enumerate(taken))
        with self._watchdog.guard():
            if not self._meet("all_to_all", 0, sent - expected):
                mine = np.array([*given, *taken], np.int64)
                every = np.empty((self.size, len(mine)), np.int64)
                self._gather(mine, every)
                check_bytes(self._name, every.tolist(), self._ranks)
            arrays = [[block.array for block in blocks] for blocks in (outs, owns)]
            all_to_all(self._levels, *arrays)

    def barrier(self) -> None:
        with self._watchdog.guard():
            self._meet("barrier", 0)

    def refuse(self, why: str) -> None:
        """Take part in the next comparison with a number that no other rank has."""
        with self._watchdog.guard():
            self._compare(0, FAILED, why)

    def fail(self, why: str) -> None:
        """Do the same on another thread, because other ranks may come late, or never."""
        if not self._parted:
            self._parted = True
            threading.Thread(target=self._tell, args=(why,), daemon=True).start()

    def _tell(self, why: str) -> None:
        with suppress(HvdExtError):  # this rank's own
            self.refuse(why)

    def _meet(self, step_name: str, count_bytes: int, lengths: int = 0) -> bool:
        """Begin a step of the collective once all ranks have reached it; as `_compare`."""
        return self._compare(count_bytes, self._about | step(step_name), lengths=lengths)

    def _compare(self, count_bytes: int, about: int, why: str = "", lengths: int = 0) -> bool:
        """Wait until all ranks have arrived in the same collective.

        Args:
            count_bytes: its bytes, if all ranks have the same.
            about: the interface's number, with the step.
            why: why this rank failed, if it did.
            lengths: a number; those of all ranks add up to 0 if lengths match.

        Returns:
            Whether lengths match, too; the same on every rank.

        Raises:
            MismatchError: on every rank, if they are in different collectives.
            HvdExtError: on every rank, if one has failed.
        """
        number = _digest(count_bytes, about) * self._factor + lengths
        if self._sum_of(number & _WORD) == 0:
            return True
        called = np.empty((self.size, 2), np.uint64)
        self._gather(np.array([count_bytes, about], np.uint64), called)
        if (called == called[0]).all() and about != FAILED:
            return False
        said = (why or self._describe(count_bytes, about, self._ranks)).encode()
        mine, texts = np.zeros(_TEXT_BYTES, np.uint8), np.empty((self.size, _TEXT_BYTES), np.uint8)
        mine[: len(said)] = np.frombuffer(said[:_TEXT_BYTES], np.uint8)
        self._gather(mine, texts)
        self._parted = True
        words = [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in texts]
        if late := np.flatnonzero(called[:, 1] == FAILED).tolist():
            raise HvdExtError(failed(self._name, words.__getitem__, self._ranks, late))
        raise differ(words, self._ranks, self._hosts)

    def _sum_of(self, number: int) -> int:
        """Return the sum of all ranks' numbers, modulo 2^64; a collective."""
        from mpi4py import MPI

        self._number[0] = number
        if code := self._sum_numbers():
            raise MPI.Exception(code)
        return int(self._number[0])

    def _gather(self, own: Array, every: Array) -> None:
        rows = every.reshape(self.size, -1).view(np.uint8)
        all_gather(self._levels, rows, own.reshape(-1).view(np.uint8))

    def abort(self) -> None:
        """Do nothing: MPI's calls cannot be ended, but the watchdog ends the job if they hang."""

    def close(self, finished: bool) -> None:
        self._watchdog.close()
        self._levels.close(finished)


def _elements(block: Block, dtype: str) -> Array:
    return block.array.view(DTYPES[dtype].stored_as)


@functools.lru_cache(maxsize=256)
def _digest(*numbers: int) -> int:
    found = 0
    for number in numbers:
        found = (found ^ number) * 0x9E3779B97F4A7C15 & _WORD
        found ^= found >> 32
    return found
