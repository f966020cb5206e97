"""The functions of `cupy.cuda.runtime`, under its names."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from testbed.cuda_stand_in import events, memory, streams
from testbed.cuda_stand_in.errors import CUDARuntimeError

__all__ = [
    "CUDARuntimeError",
    "deviceSynchronize",
    "eventCreateWithFlags",
    "eventDestroy",
    "eventElapsedTime",
    "eventQuery",
    "eventRecord",
    "eventSynchronize",
    "ipcCloseMemHandle",
    "ipcGetEventHandle",
    "ipcGetMemHandle",
    "ipcOpenEventHandle",
    "ipcOpenMemHandle",
    "malloc",
    "setDevice",
    "streamWaitEvent",
]

cudaDevAttrMultiProcessorCount = 16
memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice = 1, 2, 3

setDevice = streams.set_device
deviceSynchronize = streams.synchronize_device
malloc = memory.malloc
ipcGetMemHandle = memory.get_handle
ipcOpenMemHandle = memory.open_handle
ipcCloseMemHandle = memory.close_handle
eventCreateWithFlags = events.create
eventDestroy = events.destroy
eventElapsedTime = events.elapsed_ms
eventQuery = events.query
eventRecord = events.record
eventSynchronize = events.synchronize
streamWaitEvent = events.wait
ipcGetEventHandle = events.get_handle
ipcOpenEventHandle = events.open_handle


def eventCreate() -> int:
    return events.create(0)


def getDeviceCount() -> int:
    return streams.DEVICES


def streamCreateWithFlags(flags: int) -> int:
    if flags != 1:
        raise NotImplementedError("streams that wait for the null stream")
    return streams.make_stream()


def getDevice() -> int:
    return streams.current_device()


def deviceGetAttribute(attribute: int, device: int) -> int:
    return {cudaDevAttrMultiProcessorCount: 3}[attribute]


def streamSynchronize(stream: int) -> None:
    streams.synchronize([streams.queue_of(stream)])


def launchHostFunc(stream: int, function: Callable[[Any], object], argument: Any) -> None:
    """Have a stream call a function of the host; it goes no further until that returns."""
    streams.queue_of(stream).put(lambda: function(argument))


def memset(address: int, value: int, size_bytes: int) -> None:
    """As in CUDA, the host does not wait for it."""

    def fill() -> None:
        memory.check(address, size_bytes)
        ctypes.memset(address, value, size_bytes)

    streams.queue_of(0).put(fill)


def memcpyAsync(to: int, source: int, size_bytes: int, kind: int, stream: int) -> None:
    """Between the host, whose memory must stay, and the device, or on devices."""
    on_device = {
        memcpyHostToDevice: [to],
        memcpyDeviceToHost: [source],
        memcpyDeviceToDevice: [to, source],
    }[kind]

    def copy() -> None:
        for place in on_device:
            memory.check(place, size_bytes)
        ctypes.memmove(to, source, size_bytes)

    streams.queue_of(stream).put(copy)
