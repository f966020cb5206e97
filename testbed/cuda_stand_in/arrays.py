"""Arrays in device memory: no more than where they lie, and what keeps that alive."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from testbed.cuda_stand_in import memory, streams


@dataclass(frozen=True)
class UnownedMemory:
    """Memory that something else has allocated, which `owner` keeps."""

    ptr: int
    size: int
    owner: Any
    device_id: int = -1


@dataclass(frozen=True)
class MemoryPointer:
    """A place in memory."""

    mem: UnownedMemory
    offset: int

    @property
    def ptr(self) -> int:
        return self.mem.ptr + self.offset


class ndarray:
    """An array of a shape and dtype at a place."""

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, memptr: MemoryPointer) -> None:
        self.shape, self.dtype, self.data = shape, np.dtype(dtype), memptr
        self.nbytes = math.prod(shape) * self.dtype.itemsize


def asarray(values: Sequence[int], dtype: DTypeLike) -> ndarray:
    """A copy of the values on the thread's device."""
    host = np.asarray(values, dtype)
    address = memory.malloc(host.nbytes)
    ctypes.memmove(address, host.ctypes.data, host.nbytes)
    place = UnownedMemory(address, host.nbytes, None, streams.current_device())
    return ndarray(host.shape, host.dtype, MemoryPointer(place, 0))
