"""Events: how often each was recorded, and how many of these records a stream has reached.

A stream waits for the last record that existed when the wait was queued: none, if another
process has not recorded the event yet. Tickets exist because of this trap.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import time

from testbed.cuda_stand_in import streams
from testbed.cuda_stand_in.errors import CUDARuntimeError
from testbed.cuda_stand_in.shared import Shared

DISABLE_TIMING, INTERPROCESS = 0x02, 0x04
_COUNTS_BYTES = 16
_LOOK_AGAIN_S = 0.0002


class _Event:
    def __init__(self, shared: Shared, flags: int) -> None:
        self.shared, self.flags = shared, flags
        self.device = streams.current_device()
        # Number of the last record, and of the last that was reached.
        self.counts = (ctypes.c_uint64 * 2).from_address(shared.address)
        self.reached_s = 0.0


_events: dict[int, _Event] = {}
_addresses = itertools.count(0x7000_0000, 0x40)
_reaching = threading.Lock()


def _add(event: _Event) -> int:
    address = next(_addresses)
    _events[address] = event
    return address


def _find(event: int) -> _Event:
    if event not in _events:
        raise CUDARuntimeError("cudaErrorInvalidResourceHandle")
    return _events[event]


def create(flags: int) -> int:
    """A new event of the thread's device."""
    if flags & INTERPROCESS and not flags & DISABLE_TIMING:
        raise CUDARuntimeError("cudaErrorInvalidValue")
    return _add(_Event(Shared.make(_COUNTS_BYTES), flags))


def get_handle(event: int) -> bytes:
    """The handle by which another process opens an event."""
    if not _find(event).flags & INTERPROCESS:
        raise CUDARuntimeError("cudaErrorInvalidResourceHandle")
    return _find(event).shared.handle


def open_handle(handle: bytes) -> int:
    """An event of another process."""
    shared = Shared(handle)
    if shared.ours:
        raise CUDARuntimeError("cudaErrorDeviceUninitialized")
    return _add(_Event(shared, DISABLE_TIMING | INTERPROCESS))


def destroy(event: int) -> None:
    """Forget an event; a stream that waits for it continues to wait."""
    _find(event)
    del _events[event]


def record(event: int, stream: int) -> None:
    """Have an event reached when all is done that the stream was given so far."""
    found, queue = _find(event), streams.queue_of(stream)
    if found.device != queue.device:
        raise CUDARuntimeError("cudaErrorInvalidResourceHandle")
    found.counts[0] += 1
    number = found.counts[0]

    def reach() -> None:
        with _reaching:
            if number > found.counts[1]:  # else it was recorded again in a faster stream
                found.reached_s = time.monotonic()
                found.counts[1] = number

    queue.put(reach)


def query(event: int) -> int:
    """0 where the last record was reached, else cudaErrorNotReady's number."""
    counts = _find(event).counts
    return 0 if counts[1] >= counts[0] else 600


def elapsed_ms(begin: int, end: int) -> float:
    """The time between the last records of two events that are timed and were reached."""
    pair = _find(begin), _find(end)
    if any(event.flags & DISABLE_TIMING for event in pair):
        raise CUDARuntimeError("cudaErrorInvalidResourceHandle")
    if query(begin) or query(end):
        raise CUDARuntimeError("cudaErrorNotReady")
    return 1e3 * (pair[1].reached_s - pair[0].reached_s)


def synchronize(event: int) -> None:
    """Wait on the host for the last record of an event of this process."""
    found = _find(event)
    number = found.counts[0]
    while found.counts[1] < number:
        streams.check_device(found.device)
        time.sleep(_LOOK_AGAIN_S)


def wait(stream: int, event: int) -> None:
    """Have a stream wait for the last record of an event."""
    counts = _find(event).counts
    number = counts[0]

    def wait_for_record() -> None:
        while counts[1] < number:
            time.sleep(_LOOK_AGAIN_S)

    streams.queue_of(stream).put(wait_for_record)
