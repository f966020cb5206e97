"""The node-shared window from Python: memory that every rank of a node maps.

Regions are anonymous files (memfd_create) that peers open through /proc. They are
not bounded by /dev/shm and vanish with the last process that has them, however it
ends.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_ext.arena.layout import ITEM_BYTES, Bucket, line_up, share
from hvd_ext.errors import HvdExtError

if TYPE_CHECKING:
    from mpi4py import MPI

DTYPES = tuple(ITEM_BYTES)  # in the order of window.c's KERNELS, as are the operations
OPERATIONS = ("sum", "min", "max", "product")
SHORT_BYTES = 16 << 10
PIECE_BYTES = 256 << 10
_CONTROL_BYTES = 128
_TOKEN_BYTES = 16
_HEADER_BYTES = 4096  # data starts on a page
_OVER, _TIMED_OUT, _DIED, _REDUCED = range(4)


class WindowError(HvdExtError):
    """Ranks of a node cannot share memory; the message says why."""


class _CWindow(ctypes.Structure):
    _fields_ = [
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("control", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("pid", ctypes.POINTER(ctypes.c_int32)),
        ("missing", ctypes.POINTER(ctypes.c_uint8)),
    ]


class _CExchange(ctypes.Structure):
    _fields_ = [
        ("offset", ctypes.c_uint64),
        ("begin", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("dtype", ctypes.c_int32),
        ("operation", ctypes.c_int32),
        ("local", ctypes.c_int32),
        ("scale", ctypes.c_double),
        ("wait_s", ctypes.c_double),
        ("transfer_s", ctypes.c_double),
    ]


class _CCall(ctypes.Structure):
    _fields_ = [
        ("window", ctypes.c_void_p),
        ("exchange", ctypes.c_void_p),
        ("buffer", ctypes.c_void_p),
        ("ticket", ctypes.c_uint64),
        ("timeout_s", ctypes.c_double),
    ]


@dataclass
class Exchange:
    """One bucket's exchange, planned once and run every step.

    Attributes:
        share_bytes: the part [begin, end) of the window's data that this rank reduces.
    """

    plan: _CExchange
    share_bytes: tuple[int, int]

    def __post_init__(self) -> None:
        """Look the address up once."""
        self.address = ctypes.addressof(self.plan)

    @property
    def wait_s(self) -> float:
        """How long the last run waited for the node's other ranks to be ready."""
        return float(self.plan.wait_s)

    @property
    def transfer_s(self) -> float:
        """How long the last run took to reduce this rank's share, once all were."""
        return float(self.plan.transfer_s)


class Window:
    """One region per rank of a node, mapped by all of them.

    Attributes:
        data: this rank's region, `data_bytes` long.
    """

    def __init__(self, node: MPI.Comm, data_bytes: int) -> None:
        """Make and map the regions; collective over `node`.

        Raises:
            WindowError: on every rank of the node alike, with the first reason.
        """
        self._library = _library()
        self._size = node.size
        self._regions = _map_regions(node, _HEADER_BYTES + data_bytes)
        addresses = [_address(region) for region in self._regions]
        pointers = ctypes.c_void_p * node.size
        self._control = pointers(*addresses)
        self._data = pointers(*(address + _HEADER_BYTES for address in addresses))
        self._pid = (ctypes.c_int32 * node.size)(*node.allgather(os.getpid()))
        self._missing = (ctypes.c_uint8 * node.size)()
        self._c = _CWindow(
            node.rank, node.size, self._control, self._data, self._pid, self._missing
        )
        self._address = ctypes.addressof(self._c)
        self.rank = node.rank
        self.data = memoryview(self._regions[node.rank])[_HEADER_BYTES:]

    def plan(self, bucket: Bucket, scale: float, local: bool, operation: str = "sum") -> Exchange:
        """Plan the exchange of `bucket`.

        Args:
            bucket: where it lies.
            scale: what every element of the sum is multiplied by.
            local: False if the reduced share is taken between nodes before it goes
                back to the node's ranks.
            operation: one of OPERATIONS.
        """
        item = ITEM_BYTES[bucket.dtype]
        begin, end = share(bucket.count, self._size, self.rank, item)
        c = _CExchange(
            offset=bucket.offset_bytes,
            begin=begin,
            count=end - begin,
            dtype=DTYPES.index(bucket.dtype),
            operation=OPERATIONS.index(operation),
            local=local,
            scale=scale,
        )
        first = bucket.offset_bytes
        return Exchange(c, (first + begin * item, first + end * item))

    def ready(self, ticket: int) -> None:
        """Say that this rank's data of all exchanges up to `ticket` is in the window."""
        self._library.window_ready(self._address, ticket)

    def reduce(self, exchange: Exchange, ticket: int, timeout_s: float) -> bool:
        """Reduce this rank's share of an exchange once all ranks are ready.

        Returns:
            True if all ranks have it now, False if it is to be taken between nodes and
            then published.

        Raises:
            TimeoutError: local ranks (in `args[0]`) were not ready in time; calling
                again waits on.
            ProcessLookupError: local ranks (in `args[0]`) ended before they were.
        """
        code = self._library.window_reduce(self._address, exchange.address, ticket, timeout_s)
        if code in (_OVER, _REDUCED):
            return bool(code == _OVER)
        raise self.late(code)

    def publish(self, exchange: Exchange) -> None:
        """Give the node's ranks this rank's share; may be called by several threads."""
        self._library.window_publish(self._address, exchange.address)

    def done(self, ticket: int) -> None:
        """Say that this rank's shares of all exchanges up to `ticket` are published."""
        self._library.window_done(self._address, ticket)

    def finish(self, ticket: int, timeout_s: float) -> None:
        """Wait until all ranks are done with all exchanges up to `ticket`.

        Raises:
            TimeoutError, ProcessLookupError: as `reduce` does.
        """
        code = self._library.window_finish(self._address, ticket, timeout_s)
        if code != _OVER:
            raise self.late(code)

    def plan_outside(self, dtype: str, count: int, operation: str, scale: float) -> Exchange:
        """Plan the exchange of messages of `count` elements that lie anywhere.

        The window must have `outside_bytes`.
        """
        c = _CExchange(
            offset=_place_bytes(count * ITEM_BYTES[dtype]),
            count=count,
            dtype=DTYPES.index(dtype),
            operation=OPERATIONS.index(operation),
            local=True,
            scale=scale,
        )
        return Exchange(c, (0, 0))

    def repeated(
        self, exchange: Exchange, timeout_s: float, buffer_address: int | None = None
    ) -> Callable[[], int]:
        """An exchange from end to end, the only one in this window, to be called again and again.

        Args:
            exchange: what `plan` or `plan_outside` made.
            timeout_s: how long ranks are waited for.
            buffer_address: of a message that lies anywhere, reduced in place; None: it is
                in the window.

        Returns:
            A call that gives 0 once it is done. If not, ranks did not come, and `late`
            tells of this code which.
        """
        call = _CCall(self._address, exchange.address, buffer_address, 0, timeout_s)
        return _Repeated(self._library.window_call, ctypes.byref(call), self, exchange)

    def late(self, code: int) -> OSError:
        """What the code of an exchange that did not end means; local ranks in `args[0]`.

        TimeoutError: they were not ready in time. ProcessLookupError: they ended.
        """
        missing = [rank for rank in range(self._size) if self._missing[rank]]
        return ProcessLookupError(missing) if code == _DIED else TimeoutError(missing)


class _Repeated(functools.partial[int]):
    """A call with what its one argument points to, which must live as long."""

    window: Window
    exchange: Exchange

    def __new__(cls, function: Any, call: Any, window: Window, exchange: Exchange) -> _Repeated:
        self = super().__new__(cls, function, call)
        self.window, self.exchange = window, exchange
        return self


def outside_bytes(message_bytes: int) -> int:
    """What a window needs for messages that lie anywhere: two places, used in turn."""
    return 2 * _place_bytes(message_bytes)


def _place_bytes(message_bytes: int) -> int:
    # Up to here every rank combines all parts by itself. A longer message goes through
    # places of a size that stays in the cache, and each rank combines its share.
    return line_up(message_bytes) if message_bytes <= SHORT_BYTES else PIECE_BYTES


def _library() -> ctypes.CDLL:
    path = Path(__file__).with_name("libwindow.so")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise WindowError(
            f"{path.name} cannot be loaded ({error}): install hvd-ext again"
        ) from None
    address, ticket, timeout_s = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_double
    library.window_ready.argtypes = [address, ticket]
    library.window_ready.restype = None
    library.window_reduce.argtypes = [address, address, ticket, timeout_s]
    library.window_publish.argtypes = [address, address]
    library.window_publish.restype = None
    library.window_done.argtypes = [address, ticket]
    library.window_done.restype = None
    library.window_finish.argtypes = [address, ticket, timeout_s]
    return library


def _map_regions(node: MPI.Comm, region_bytes: int) -> list[mmap.mmap]:
    token = secrets.token_bytes(_TOKEN_BYTES)
    fd, failure = -1, ""
    try:
        fd = os.memfd_create("hvd_ext", os.MFD_CLOEXEC)
        # Pages are taken now: an error here, not a bus error in the middle of a step.
        os.posix_fallocate(fd, 0, region_bytes)
        os.pwrite(fd, token, _CONTROL_BYTES)
    except OSError as error:
        failure = f"{region_bytes} bytes of shared memory: {error.strerror}"
    regions: list[mmap.mmap] = []
    tickets = node.allgather((os.getpid(), fd, token, failure))
    failure = next((ticket[3] for ticket in tickets if ticket[3]), "")
    if not failure:
        try:
            regions = [
                _open_region(pid, peer, token, region_bytes) for pid, peer, token, _ in tickets
            ]
        except OSError as error:
            failure = f"a peer's memory: {error.strerror or error}"
    # Also the point up to which every rank has to keep its descriptor open.
    failures = [text for text in node.allgather(failure) if text]
    if fd >= 0:
        os.close(fd)
    if failures:
        raise WindowError(failures[0])
    return regions


def _open_region(pid: int, fd: int, token: bytes, region_bytes: int) -> mmap.mmap:
    opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        # In another container the same numbers may name another process's file.
        if os.pread(opened, _TOKEN_BYTES, _CONTROL_BYTES) != token:
            raise OSError(0, f"process {pid} is another one here, as between containers")
        return mmap.mmap(opened, region_bytes)
    finally:
        os.close(opened)


def _address(region: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(region))
