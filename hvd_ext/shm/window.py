"""The node-shared window from Python: sums straight from the memory of a node's ranks."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvd_ext.dtypes import DTYPES
from hvd_ext.shm.allocation import Place
from hvd_ext.shm.c_call import CCall
from hvd_ext.shm.layout import align_up, shard
from hvd_ext.shm.libc import address
from hvd_ext.shm.library import load_library
from hvd_ext.shm.regions import map_regions
from hvd_ext.units import KIB

if TYPE_CHECKING:
    from mpi4py import MPI

# Both are in the order of KERNELS in kernels.h.
DTYPE_NUMBERS = {name: number for number, name in enumerate(DTYPES)}
OPERATIONS = ("sum", "min", "max", "product")
# For float32 and float64, on a power of two of ranks, only in the window.
TREE_SUM = "tree_sum"
OPERATION_NUMBERS = {name: number for number, name in enumerate((*OPERATIONS, TREE_SUM))}
PIECE_BYTES = 256 << 10
_HEADER_BYTES = 4096  # data starts on a page
OVER, _TIMED_OUT, _DIED, _REDUCED, _DIFFER, _FAILED, UNEQUAL = range(7)
_WHY_BYTES = 512
FOREVER = 2**64 - 1


class CollectivesDifferError(Exception):
    """Ranks have met in different collectives."""


class PeersFailedError(Exception):
    """Ranks of the node (in `args[0]`) have reported that they will not arrive."""


class _CCollective(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_uint64), ("about", ctypes.c_uint64))


class _CWindow(ctypes.Structure):
    _fields_ = [
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("control", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("pid", ctypes.POINTER(ctypes.c_int32)),
        ("missing", ctypes.POINTER(ctypes.c_uint8)),
        ("collective", _CCollective),
    ]


class CExchange(ctypes.Structure):
    _fields_ = [
        ("offset", ctypes.c_uint64),
        ("begin", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("dtype", ctypes.c_int32),
        ("operation", ctypes.c_int32),
        ("local", ctypes.c_int32),
        ("scale", ctypes.c_double),
        ("transfer_s", ctypes.c_double),
    ]


class CExchangeCall(ctypes.Structure):
    _fields_ = [
        ("window", ctypes.c_void_p),
        ("exchange", ctypes.c_void_p),
        ("buffer", ctypes.c_void_p),
        ("ticket", ctypes.c_uint64),
        ("timeout_s", ctypes.c_double),
        ("piece", ctypes.c_uint64),
        ("at", ctypes.c_uint64),
        ("stride", ctypes.c_uint64),
    ]


@dataclass
class NodeExchange:
    """One exchange of a node's ranks, planned once and run every step.

    Attributes:
        shard_bytes: the part [begin, end) of the window's data that this rank reduces.
        piece_bytes: bytes of a long message outside of the window that go through it at once.
    """

    plan: CExchange
    shard_bytes: tuple[int, int]
    piece_bytes: int = 0

    def __post_init__(self) -> None:
        self.address = ctypes.addressof(self.plan)

    @property
    def transfer_s(self) -> float:
        """Return the time that the last run took to reduce this rank's shard."""
        return float(self.plan.transfer_s)


class NodeWindow:
    """One region per rank of a node, mapped by all of them.

    Attributes:
        rank, size: number among the node's ranks, and their number.
        address: address of its C structure.
        data: this rank's region, `data_bytes` long; none in a window over other memory.
        collective: the numbers `bytes` and `about` of the collective to which the next exchange
            belongs; ranks compare them when they meet. 0 if exchanges were planned together.
    """

    def __init__(self, node: MPI.Comm, data_bytes: int) -> None:
        """Make and map the regions; collective over `node`.

        Raises:
            WindowError: on every rank of the node alike, with the first reason.
        """
        self._library = load_library()
        self.size = node.size
        self._regions = map_regions(node, _HEADER_BYTES + data_bytes)
        addresses = [address(region) for region in self._regions]
        pointers = ctypes.c_void_p * node.size
        self._control = pointers(*addresses)
        self._data = pointers(*(address + _HEADER_BYTES for address in addresses))
        self._pid = (ctypes.c_int32 * node.size)(*node.allgather(os.getpid()))
        self._missing = (ctypes.c_uint8 * node.size)()
        self._c = _CWindow(
            node.rank, node.size, self._control, self._data, self._pid, self._missing
        )
        self.address = ctypes.addressof(self._c)
        self.collective = self._c.collective
        self._place: Place | None = None
        self.rank = node.rank
        self.data = memoryview(self._regions[node.rank])[_HEADER_BYTES:]

    @classmethod
    def over(cls, node: MPI.Comm, place: Place) -> NodeWindow:
        """A window whose data are buffers in an allocation; collective over `node`.

        Several windows may use the same memory. Keep this rank's buffer as long as the window.

        Raises:
            WindowError: as the constructor.
        """
        self = cls(node, 0)
        self._place = place
        for rank, begin in enumerate(place.begins):
            self._data[rank] = begin
        return self

    def plan(
        self,
        offset_bytes: int,
        count: int,
        dtype: str,
        scale: float,
        *,
        local: bool,
        operation: str = "sum",
        part: tuple[int, int] | None = None,
    ) -> NodeExchange:
        """Plan the exchange of `count` elements at the same place of every rank's data.

        Args:
            offset_bytes: offset in the data.
            count: number of elements.
            dtype: a key of DTYPES.
            scale: factor of every element of the sum.
            local: False if the reduced shard is exchanged between nodes before it goes to the
                node's ranks.
            operation: one of OPERATIONS, or TREE_SUM.
            part: the elements [begin, end) that this rank reduces; by default its shard.
        """
        item = DTYPES[dtype].item_bytes
        begin, end = shard(count, self.size, self.rank, item) if part is None else part
        c = CExchange(
            offset=offset_bytes,
            begin=begin,
            count=end - begin,
            dtype=DTYPE_NUMBERS[dtype],
            operation=OPERATION_NUMBERS[operation],
            local=local,
            scale=scale,
        )
        return NodeExchange(c, (offset_bytes + begin * item, offset_bytes + end * item))

    def peer(self, rank: int) -> memoryview:
        """Return the data of a rank of the node; `data` is that of this rank."""
        return self._regions[rank][_HEADER_BYTES:]

    def ready(self, ticket: int) -> None:
        """Say that this rank's data of all exchanges up to `ticket` is in the window."""
        self._library.window_ready(self.address, ticket)

    def reduce(self, exchange: NodeExchange, ticket: int, timeout_s: float) -> bool:
        """Reduce this rank's shard of an exchange once all ranks are ready.

        Returns:
            True if all ranks have it now, False if it must be exchanged between nodes and then
            published.

        Raises:
            TimeoutError: local ranks (in `args[0]`) were not ready in time, or before a signal;
                call again to continue waiting.
            ProcessLookupError: local ranks (in `args[0]`) ended before they were ready.
            CollectivesDifferError: ranks are not in the same collective.
            PeersFailedError: local ranks failed before they were ready.
        """
        code = self._library.window_reduce(self.address, exchange.address, ticket, timeout_s)
        if code in (OVER, _REDUCED):
            return bool(code == OVER)
        raise self.late(code)

    def meet(self, ticket: int, timeout_s: float) -> None:
        """Report that this rank is ready with `ticket`, and wait until all ranks are.

        Raises:
            TimeoutError, ProcessLookupError, CollectivesDifferError, PeersFailedError: as `reduce`.
        """
        code = self._library.window_meet(self.address, ticket, timeout_s)
        if code != OVER:
            raise self.late(code)

    def publish(self, exchange: NodeExchange) -> None:
        """Write this rank's shard to the node's ranks; several threads may call it."""
        self._library.window_publish(self.address, exchange.address)

    def done(self, ticket: int) -> None:
        """Say that this rank's shards of all exchanges up to `ticket` are published."""
        self._library.window_done(self.address, ticket)

    def finish(self, ticket: int, timeout_s: float) -> None:
        """Wait until all ranks are done with all exchanges up to `ticket`.

        Raises:
            TimeoutError, ProcessLookupError, PeersFailedError: as `reduce` does.
        """
        code = self._library.window_finish(self.address, ticket, timeout_s)
        if code != OVER:
            raise self.late(code)

    def collective_of(self, rank: int, ticket: int) -> tuple[int, int]:
        """Return the `bytes` and `about` of the collective in which a local rank met the others."""
        found = _CCollective()
        self._library.window_collective_of(self.address, rank, ticket, ctypes.byref(found))
        return found.bytes, found.about

    def fail(self, first: int, last: int, why: str) -> None:
        """Report to the other ranks that this one skips the tickets from `first` to `last`."""
        self._library.window_fail(self.address, first, last, why.encode()[: _WHY_BYTES - 1])

    def why(self, rank: int) -> str:
        """Return the reason why a local rank has failed."""
        text = ctypes.create_string_buffer(_WHY_BYTES)
        self._library.window_why(self.address, rank, text)
        return text.value.decode(errors="replace")

    def plan_staged(self, dtype: str, count: int, operation: str, scale: float) -> NodeExchange:
        """Plan the exchange of messages of `count` elements outside of the window.

        It must have room for `staging_bytes`.
        """
        message_bytes = count * DTYPES[dtype].item_bytes
        short = message_bytes <= short_bytes(self.size)
        c = CExchange(
            offset=align_up(message_bytes) if short else 0,
            count=count,
            dtype=DTYPE_NUMBERS[dtype],
            operation=OPERATIONS.index(operation),
            local=True,
            scale=scale,
        )
        return NodeExchange(c, (0, 0), 0 if short else PIECE_BYTES)

    def repeated(
        self, exchange: NodeExchange, timeout_s: float, buffer_address: int | None = None
    ) -> CCall:
        """Return a repeatable call of a whole exchange, the only one in this window.

        Args:
            exchange: result of `plan` or `plan_staged`.
            timeout_s: how long to wait for ranks.
            buffer_address: address of a message outside of the window, reduced in place; None: it
                is in the window.

        Returns:
            A call that returns 0 when it has ended; any other code means that ranks have not
            arrived yet, or that a signal came. `late` names the ranks; call again to continue
            waiting.
        """
        piece = exchange.piece_bytes
        call = CExchangeCall(self.address, exchange.address, buffer_address, 0, timeout_s, piece)
        return CCall(self._library.window_call, call, self, exchange)

    def late(self, code: int) -> Exception:
        """Return the error for the code of an unfinished exchange; local ranks in `args[0]`.

        TimeoutError: they were not ready in time. ProcessLookupError: they ended.
        """
        missing = [rank for rank in range(self.size) if self._missing[rank]]
        if code in (_DIFFER, _FAILED):
            return CollectivesDifferError() if code == _DIFFER else PeersFailedError(missing)
        return ProcessLookupError(missing) if code == _DIED else TimeoutError(missing)


def staging_bytes(message_bytes: int, ranks: int) -> int:
    """Return the bytes that a window needs for messages outside of it.

    A short one has two places, used alternately; a long one has a place for a piece.
    """
    short = message_bytes <= short_bytes(ranks)
    return 2 * align_up(message_bytes) if short else min(align_up(message_bytes), PIECE_BYTES)


def short_bytes(ranks: int) -> int:
    """Return the longest message outside of the window of which every rank combines all parts.

    That saves one wait for all ranks, but every rank reads all parts. With two ranks on two cores,
    the wait takes less time than the reading from 1 to 2 KiB on. With four ranks on two cores,
    where a wait switches threads, it does from 4 KiB on.
    """
    return (1 if ranks == 2 else 4) * KIB
