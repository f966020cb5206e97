"""Collectives of a node's ranks, each one C call, of messages that are outside of their window."""

from __future__ import annotations

import ctypes
import os
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hvd_ext.dtypes import DTYPES
from hvd_ext.shm.library import load_library
from hvd_ext.shm.window import (
    DTYPE_NUMBERS,
    OPERATION_NUMBERS,
    OVER,
    PIECE_BYTES,
    UNEQUAL,
    CExchange,
    CExchangeCall,
    NodeWindow,
    short_bytes,
)
from hvd_ext.units import KIB, MIB

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.shm.block import Block

# From this length on, one copy by the kernel takes less time than two through the window.
ONCE_FROM_BYTES = 32 * KIB
# Up to this length, messages stay in the caches, and a root does not wait for the ranks that copy
# from the window.
BROADCAST_ONCE_FROM_BYTES = 6 * MIB
_AS_IT_IS = -1
_TOKEN_BYTES = 16


class UnequalError(Exception):
    """Ranks expect other lengths than the other ranks send; raised on all ranks."""


class _CPass(ctypes.Structure):
    _fields_ = (
        ("window", ctypes.c_void_p),
        ("given", ctypes.c_void_p),
        ("taken", ctypes.c_void_p),
        ("given_bytes", ctypes.c_void_p),
        ("taken_bytes", ctypes.c_void_p),
        ("everyones", ctypes.c_void_p),
        ("cells", ctypes.c_uint64),
        ("cell_bytes", ctypes.c_uint64),
        ("stride", ctypes.c_uint64),
        ("once_from", ctypes.c_uint64),
        ("longest", ctypes.c_uint64),
        ("ticket", ctypes.c_uint64),
        ("at", ctypes.c_uint64),
        ("timeout_s", ctypes.c_double),
        ("scale", ctypes.c_double),
        ("dtype", ctypes.c_int32),
        ("operation", ctypes.c_int32),
    )


class Outside:
    """The collectives: prepare one, then run it. Memory is given by its address.

    Attributes:
        ticket: the window's last finished ticket.
    """

    def __init__(self, node: MPI.Comm, window: NodeWindow, place_bytes: int) -> None:
        """Use a window, alternating with its other exchanges; collective over `node`.

        Args:
            node: the window's ranks.
            window: twice as long as a place.
            place_bytes: bytes of each of its two places, at least PIECE_BYTES.
        """
        library = load_library()
        self._window, self.ticket = window, 0
        self._can_read_peers = _can_read_peers(node)
        size = window.size
        self._exchange = CExchange(local=True)
        exchange = ctypes.addressof(self._exchange)
        self._reduction = CExchangeCall(window.address, exchange, None, stride=place_bytes)
        self._given, self._taken = (ctypes.c_void_p * size)(), (ctypes.c_void_p * size)()
        self._bytes = (ctypes.c_uint64 * (2 * size))()
        self._everyones = (ctypes.c_uint64 * (2 * size * size))()
        lengths = ctypes.addressof(self._bytes)
        self._pass = _CPass(
            window=window.address,
            given=ctypes.addressof(self._given),
            taken=ctypes.addressof(self._taken),
            given_bytes=lengths,
            taken_bytes=lengths + 8 * size,
            stride=place_bytes,
        )
        self._reduce = library.window_call, ctypes.byref(self._reduction), self._reduction
        self._move = library.window_pass, ctypes.byref(self._pass), self._pass
        self._prepared: tuple[Any, Any, Any] = self._move

    def all_reduce(
        self, address: int, count: int, dtype: str, operation: str, scale: float
    ) -> None:
        """Reduce a message in place.

        Args:
            address: address of its memory.
            count: number of elements.
            dtype: a key of DTYPES.
            operation: one of OPERATIONS.
            scale: factor of every element of the result.
        """
        exchange, call = self._exchange, self._reduction
        exchange.count, exchange.dtype = count, DTYPE_NUMBERS[dtype]
        exchange.operation, exchange.scale = OPERATION_NUMBERS[operation], scale
        short = count * DTYPES[dtype].item_bytes <= short_bytes(self._window.size)
        call.piece, call.at = 0 if short else PIECE_BYTES, 0
        call.buffer, call.ticket = address, self.ticket
        self._prepared = self._reduce

    def all_gather(self, own: int, count_bytes: int, rows: Sequence[int]) -> None:
        """Gather each rank's `own` into a row."""
        size = self._window.size
        self._bytes[0] = count_bytes
        self._bytes[size:] = [count_bytes] * size
        self._given[0] = own
        self._taken[:] = list(rows)
        self._pass_on(1, count_bytes, once_from=ONCE_FROM_BYTES)

    def broadcast(self, address: int, count_bytes: int, root: int) -> None:
        """Copy the root's memory to every rank's."""
        size, is_root = self._window.size, self._window.rank == root
        self._bytes[0] = count_bytes if is_root else 0
        self._bytes[size:] = [0] * size
        if not is_root:
            self._bytes[size + root] = count_bytes
        self._given[0] = self._taken[root] = address
        self._pass_on(1, count_bytes, once_from=BROADCAST_ONCE_FROM_BYTES)

    def all_to_all(
        self,
        given: Sequence[Block],
        taken: Sequence[Block],
    ) -> None:
        """Send each rank a message, and receive one from each.

        If lengths differ, `run` raises UnequalError before anything is copied.
        """
        self._given[:] = [block.address for block in given]
        self._taken[:] = [block.address for block in taken]
        self._bytes[:] = [block.count_bytes for block in (*given, *taken)]
        self._pass_on(self._window.size, 1, once_from=ONCE_FROM_BYTES, may_differ=True)

    def reduce_scatter(
        self, out: int, own: int, count: int, dtype: str, operation: str, scale: float
    ) -> None:
        """Reduce `own` over all ranks, and write this rank's row to `out`.

        Args:
            out: address of the result.
            own: address of the message, which has a row of `count` elements for each rank.
            count: number of elements.
            dtype: a key of DTYPES.
            operation: one of OPERATIONS.
            scale: factor of every element of the result.
        """
        size, row_bytes = self._window.size, count * DTYPES[dtype].item_bytes
        self._bytes[:] = [row_bytes] * (2 * size)
        self._given[:] = [own + row_bytes * rank for rank in range(size)]
        self._taken[0] = out
        self._pass.dtype, self._pass.scale = DTYPE_NUMBERS[dtype], scale
        self._pass_on(size, row_bytes, OPERATION_NUMBERS[operation])

    def _pass_on(
        self,
        cells: int,
        longest: int,
        operation: int = _AS_IT_IS,
        *,
        once_from: int = 0,
        may_differ: bool = False,
    ) -> None:
        call = self._pass
        call.everyones = ctypes.addressof(self._everyones) if may_differ else None
        call.cells, call.longest, call.operation = cells, longest, operation
        # If the lengths do not differ, the messages of all ranks are short.
        is_short = longest < once_from and not may_differ
        call.once_from = once_from if self._can_read_peers and not is_short else 0
        call.at, call.ticket = 0, self.ticket
        self._prepared = self._move

    def run(self, timeout_s: float) -> None:
        """Run the prepared collective, or resume it if ranks were late.

        Raises:
            TimeoutError, ProcessLookupError, CollectivesDifferError, PeersFailedError: as
                NodeWindow.reduce; `ticket` is then the unfinished one.
            UnequalError: as `all_to_all` says.
        """
        run, argument, call = self._prepared
        call.timeout_s = timeout_s
        code = run(argument)
        self.ticket = call.ticket + (code not in (OVER, UNEQUAL))
        if code == UNEQUAL:
            raise UnequalError
        if code != OVER:
            raise self._window.late(code)

    @property
    def everyones_bytes(self) -> list[list[int]]:
        """Return the bytes that each rank sends to each in an all_to_all, then those it expects."""
        width = len(self._bytes)
        return [self._everyones[at : at + width] for at in range(0, len(self._everyones), width)]


def _can_read_peers(node: MPI.Comm) -> bool:
    """Whether every rank of a node may read every other's memory; collective over `node`.

    The kernel decides that: /proc/sys/kernel/yama/ptrace_scope, containers, users.
    """
    token = ctypes.create_string_buffer(secrets.token_bytes(_TOKEN_BYTES), _TOKEN_BYTES)
    found, read = ctypes.create_string_buffer(_TOKEN_BYTES), load_library().peer_read
    peers = node.allgather((os.getpid(), ctypes.addressof(token), token.raw))
    # In another container the same number may be another process's.
    can = all(
        read(pid, found, ctypes.c_void_p(at), ctypes.c_uint64(_TOKEN_BYTES)) and found.raw == theirs
        for pid, at, theirs in peers
    )
    return all(node.allgather(can))
