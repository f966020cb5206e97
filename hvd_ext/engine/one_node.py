"""A group whose ranks share one node's memory: every collective goes through one window.

No plan depends on an address or a length, so ranks whose allocators differ stay in step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from hvd_ext.dtypes import DTYPES
from hvd_ext.engine.compared import FAILED, STEPS, Describe, check_bytes, differ, failed, step
from hvd_ext.errors import HvdExtError
from hvd_ext.shm.outside import Outside, UnequalError
from hvd_ext.shm.regions import on_every_rank
from hvd_ext.shm.window import (
    FOREVER,
    CollectivesDifferError,
    NodeWindow,
    PeersFailedError,
)
from hvd_ext.units import MIB

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.job.topology import Topology
    from hvd_ext.shm.block import Block

T = TypeVar("T")
# Short enough to be still in the cache when peers read it.
PLACE_BYTES = MIB
# The period for finding late ranks, and for noticing an abort.
_SLICE_S = 0.1
_ALL_REDUCE, _REDUCE_SCATTER, _ALL_GATHER, _BROADCAST, _ALL_TO_ALL, _BARRIER = map(step, STEPS)


class OneNode:
    """A Carrier in the node's memory.

    Attributes:
        rank, size: number in the group, and number of ranks.
    """

    name = "shared_memory"

    def __init__(
        self, topology: Topology, timeout_s: float, describe: Describe, setting: str
    ) -> None:
        """Make the window; collective over the group.

        Args:
            topology: the group's topology, of one node.
            timeout_s: how long to wait for ranks.
            describe: returns words for the number that `expect` takes.
            setting: source of that time, for errors.

        Raises:
            WindowError: on every rank, if some cannot share memory.
        """
        self.rank, self.size = topology.world.rank, topology.world.size
        self._window = on_every_rank(topology, lambda: NodeWindow(topology.node, 2 * PLACE_BYTES))
        self._outside = Outside(topology.node, self._window, PLACE_BYTES)
        self._hosts, self._ranks = topology.hosts_by_rank, topology.ranks
        self._describe, self._setting = describe, setting
        # Making one takes a tenth of a short collective's time, so they are reused.
        self._monitor_of = functools.lru_cache(maxsize=64)(topology.monitor)
        self._memories = [
            np.frombuffer(self._window.peer(rank), np.uint8) for rank in range(self.size)
        ]
        self._refused = range(0)
        self._aborted = False
        self.expect("a collective", timeout_s, 0)

    def expect(self, name: str, limit_s: float, about: int) -> None:
        self._name, self._about = name, about
        self._late: list[int] = []
        self._monitor = self._monitor_of(limit_s, name, self._setting)

    def refuse(self, why: str) -> None:
        ticket, _ = self._next()
        first = self._refused.start if self._refused.stop == ticket else ticket
        self._refused = range(first, ticket + 1)
        self._window.fail(first, ticket, why)

    def fail(self, why: str) -> None:
        self._window.fail(self._outside.ticket, FOREVER, why)

    def missing(self) -> list[int]:
        return [self._ranks[rank] for rank in self._late]

    def all_reduce(self, block: Block, dtype: str, operation: str, scale: float) -> str:
        self._note(block.count_bytes, _ALL_REDUCE)
        count = block.count_bytes // DTYPES[dtype].item_bytes
        self._outside.all_reduce(block.address, count, dtype, operation, scale)
        self._wait(self._outside.run)
        return self.name

    def reduce_scatter(
        self, out: Block, own: Block, dtype: str, scale: float, operation: str = "sum"
    ) -> None:
        self._note(out.count_bytes, _REDUCE_SCATTER)
        count = out.count_bytes // DTYPES[dtype].item_bytes
        self._outside.reduce_scatter(out.address, own.address, count, dtype, operation, scale)
        self._wait(self._outside.run)

    def all_gather(self, out: Block, own: Block) -> None:
        begin, count = out.address, own.count_bytes
        self._all_gather([begin + rank * count for rank in range(self.size)], own)

    def all_gather_rows(self, rows: Sequence[Block], own: Block) -> None:
        self._all_gather([row.address for row in rows], own)

    def _all_gather(self, rows: Sequence[int], own: Block) -> None:
        self._note(own.count_bytes, _ALL_GATHER)
        self._outside.all_gather(own.address, own.count_bytes, rows)
        self._wait(self._outside.run)

    def broadcast(self, block: Block, root: int) -> None:
        self._note(block.count_bytes, _BROADCAST)
        self._outside.broadcast(block.address, block.count_bytes, root)
        self._wait(self._outside.run)

    def all_to_all(self, outs: Sequence[Block], owns: Sequence[Block]) -> None:
        self._note(0, _ALL_TO_ALL)
        outside = self._outside
        outside.all_to_all(owns, outs)
        try:
            self._wait(outside.run)
        except UnequalError:
            check_bytes(self._name, outside.everyones_bytes, self._ranks)

    def barrier(self) -> None:
        self._next()
        self._meet(0, _BARRIER)

    def _note(self, count_bytes: int, number: int) -> None:
        """Note this rank's collective, for other ranks to compare."""
        collective = self._window.collective
        collective.bytes, collective.about = count_bytes, self._about | number

    def _meet(self, count_bytes: int, number: int) -> None:
        """Wait until all ranks have arrived with the next ticket, in the same collective."""
        self._note(count_bytes, number)
        self._wait(functools.partial(self._window.meet, self._outside.ticket))

    def _next(self) -> tuple[int, int]:
        """Return the next ticket, and the offset of its place."""
        self._outside.ticket += 1
        return self._outside.ticket, (self._outside.ticket & 1) * PLACE_BYTES

    def _gather_numbers(self, own: Array, count_bytes: int, number: int) -> Array:
        """Gather numbers of every rank, int64, of equal count; all ranks have arrived by then.

        Args:
            own: this rank's numbers.
            count_bytes: bytes of their collective, if all ranks have the same.
            number: number of its step.
        """
        _, place = self._next()
        part = slice(place, place + own.nbytes)
        self._memories[self.rank][part].view(np.int64)[:] = own
        self._meet(count_bytes, number)
        return np.stack([memory[part].view(np.int64) for memory in self._memories])

    def _wait(self, wait: Callable[[float], T]) -> T:
        """Wait for the node's ranks.

        Raises:
            StallError: ranks did not arrive in time, or ended.
            MismatchError: they are in another collective.
            HvdExtError: a rank has reported that it failed, or the group was aborted.
        """

        def slice_(limit_s: float) -> T:
            if self._aborted:
                raise HvdExtError(f"{self._name}: the process group was aborted")
            try:
                return wait(min(limit_s, _SLICE_S))
            except TimeoutError as late:
                self._late = late.args[0]
                raise

        try:
            return self._monitor(slice_)
        except CollectivesDifferError:
            raise self._differ() from None
        except PeersFailedError as error:
            late = error.args[0]
            text = failed(self._name, self._window.why, self._ranks, late)
            raise HvdExtError(text) from None

    def _differ(self) -> HvdExtError:
        """Return the error for this ticket, if ranks are not in the same collective."""
        ticket = self._outside.ticket
        said = [self._window.collective_of(rank, ticket) for rank in range(self.size)]
        refused = [rank for rank, (_, about) in enumerate(said) if about == FAILED]
        if refused:
            return HvdExtError(failed(self._name, self._window.why, self._ranks, refused))
        texts = [self._describe(*numbers, self._ranks) for numbers in said]
        return differ(texts, self._ranks, self._hosts)

    def abort(self) -> None:
        self._aborted = True

    def close(self, finished: bool) -> None:
        """Release the memory, which is freed with the last rank that maps it."""
        if finished:
            self._memories.clear()
            del self._outside
            del self._window
