"""The names of `cupy.cuda`: the runtime, devices and streams as contexts."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from testbed.cuda_stand_in import memory, runtime, streams
from testbed.cuda_stand_in.arrays import MemoryPointer, UnownedMemory

__all__ = [
    "Device",
    "MemoryPointer",
    "Stream",
    "UnownedMemory",
    "alloc_pinned_memory",
    "runtime",
]


def alloc_pinned_memory(size_bytes: int) -> Any:
    """Memory of the host that devices copy to and from, and kernels reach; not zero."""
    made = (ctypes.c_char * size_bytes).from_buffer(bytearray(b"\xab") * size_bytes)
    memory.adopt(ctypes.addressof(made), size_bytes)
    return made


class Device:
    """Makes a device the thread's, until the context ends."""

    def __init__(self, device: int) -> None:
        self.id = device
        self._before: list[int] = []

    def __enter__(self) -> Device:
        self._before.append(streams.current_device())
        streams.set_device(self.id)
        return self

    def __exit__(self, *_: object) -> None:
        streams.set_device(self._before.pop())


class Stream:
    """A stream of the thread's device; in its context, kernels are launched on it.

    Attributes:
        ptr: its address.
    """

    def __init__(self, *, non_blocking: bool = False) -> None:
        if not non_blocking:
            raise NotImplementedError("streams that wait for the null stream")
        self.ptr = streams.make_stream()

    def __enter__(self) -> Stream:
        streams.enter_stream(self.ptr)
        return self

    def __exit__(self, *_: object) -> None:
        streams.leave_stream()

    def synchronize(self) -> None:
        streams.synchronize([streams.queue_of(self.ptr)])

    def launch_host_func(self, function: Callable[[Any], object], argument: Any) -> None:
        runtime.launchHostFunc(self.ptr, function, argument)
