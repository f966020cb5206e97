"""NCCL's functions, under its names: ranks meet in memory that processes share.

As a kernel of NCCL's does, a sum holds its stream until all ranks' streams have come to theirs.
Sums are of float32, and in the order of the ranks.
"""

from __future__ import annotations

import ctypes
import time
from functools import partial
from typing import Any

import numpy as np

from testbed.cuda_stand_in import memory, streams
from testbed.cuda_stand_in.errors import CUDARuntimeError
from testbed.cuda_stand_in.shared import Shared

_MOST_RANKS, _PIECE_BYTES = 8, 1 << 20
_LOOK_AGAIN_S, _HUNG_AFTER_S = 0.0002, 60.0
_INVALID_USAGE, _FLOAT32, _SUM = 5, 7, 0
_communicators: list[_Communicator] = []


class _Communicator:
    def __init__(self, shared: Shared, size: int, rank: int) -> None:
        self.shared, self.size, self.rank = shared, size, rank
        held = memoryview((ctypes.c_char * shared.size_bytes).from_address(shared.address))
        words = np.frombuffer(held, np.uint64, _MOST_RANKS)
        # How often each rank has come to a meeting.
        self._met = words
        pieces = np.frombuffer(held, np.float32, offset=words.nbytes)
        self._pieces = pieces.reshape(_MOST_RANKS, -1)

    def meet(self) -> None:
        self._met[self.rank] += np.uint64(1)
        deadline_s = time.monotonic() + _HUNG_AFTER_S
        while (self._met[: self.size] < self._met[self.rank]).any():
            if time.monotonic() > deadline_s:
                raise CUDARuntimeError("cudaErrorLaunchTimeout")
            time.sleep(_LOOK_AGAIN_S)

    def sum(self, address: int, count: int) -> None:
        memory.check(address, 4 * count)
        held = memoryview((ctypes.c_char * (4 * count)).from_address(address))
        values = np.frombuffer(held, np.float32)
        for first in range(0, count, _PIECE_BYTES // 4):
            part = values[first : first + _PIECE_BYTES // 4]
            self._pieces[self.rank, : len(part)] = part
            self.meet()
            total = self._pieces[0, : len(part)].copy()
            for other in self._pieces[1 : self.size, : len(part)]:
                total += other
            self.meet()
            part[:] = total


def ncclGetUniqueId(to: Any) -> int:
    shared = Shared.make(8 * _MOST_RANKS + _MOST_RANKS * _PIECE_BYTES)
    to._obj.internal = shared.handle
    ctypes.memmove(ctypes.addressof(to._obj), shared.handle, len(shared.handle))
    return 0


def ncclCommInitRank(to: Any, size: int, unique_id: Any, rank: int) -> int:
    if size > _MOST_RANKS:
        return _INVALID_USAGE
    handle = ctypes.string_at(ctypes.addressof(unique_id), 64)
    _communicators.append(_Communicator(Shared(handle), size, rank))
    to._obj.value = len(_communicators)
    _communicators[-1].meet()
    return 0


def ncclAllReduce(
    source: Any, to: Any, count: Any, dtype: int, op: int, comm: Any, stream: Any
) -> int:
    if (dtype, op) != (_FLOAT32, _SUM) or source.value != to.value:
        return _INVALID_USAGE
    found, address, number = _communicators[comm.value - 1], to.value, count.value
    streams.queue_of(stream.value or 0).put(partial(found.sum, address, number))
    return 0


def ncclGetErrorString(code: int) -> bytes:
    return {_INVALID_USAGE: b"invalid usage"}.get(code, b"unhandled cuda error")
