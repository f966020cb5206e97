"""Long messages in segments: what one segment costs to reduce hides the next one's transfer.

A segment is also what bounds memory. Every algorithm receives what it has yet to
combine in `scratch`, which holds a few segments however long the message is, is kept
between calls (fresh pages cost more than the sum), and belongs to one thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_ext.allreduce.operations import Array, Operation
from hvd_ext.arithmetic.allreduce_work import SEGMENT_BYTES
from hvd_ext.units import GIB

if TYPE_CHECKING:
    from mpi4py import MPI

# MPI counts with an int, and libraries compute bytes with one.
MOST_BYTES = GIB
TAG = 1
# How often a request is tested before this thread sleeps, and for how long; longer each time.
_TESTS = 5
_LEAST_SLEEP_S, _MOST_SLEEP_S = 30e-6, 300e-6


class _Held(threading.local):
    def __init__(self) -> None:
        self.arrays: dict[tuple[str, Any], Array] = {}


_held = _Held()


def scratch(count: int, dtype: Any, purpose: str = "received") -> Array:
    """Memory of this thread for `count` elements, valid until the next call for `purpose`."""
    arrays = _held.arrays
    array = arrays.get((purpose, dtype))
    if array is None or len(array) < count:
        array = arrays[purpose, dtype] = np.empty(count, dtype)
    return array[:count]


def wait(request: MPI.Request) -> None:
    """Wait for one of many transfers that are under way.

    MPI's own wait would keep the core busy, which the network stack, other ranks' sums and
    the training may need; the transfers continue without this thread.
    """
    for _ in range(_TESTS):
        if request.Test():
            return
    sleep_s = _LEAST_SLEEP_S
    while not request.Test():
        time.sleep(sleep_s)
        sleep_s = min(2 * sleep_s, _MOST_SLEEP_S)


def transfer(comm: MPI.Comm, outgoing: Array, to: int, incoming: Array, source: int) -> None:
    """Send one array and receive another at once; an empty one makes no message."""
    most = MOST_BYTES // outgoing.itemsize
    if 0 < len(outgoing) <= most and 0 < len(incoming) <= most:
        comm.Sendrecv(outgoing, to, TAG, incoming, source, TAG)
        return
    requests = [comm.Irecv(part, source, TAG) for part in _parts(incoming, most)]
    requests += [comm.Isend(part, to, TAG) for part in _parts(outgoing, most)]
    for request in requests:
        request.Wait()


def transfer_and_combine(
    comm: MPI.Comm,
    outgoing: Array,
    to: int,
    target: Array,
    source: int,
    operation: Operation,
) -> None:
    """Send one array, and combine what comes from `source` into `target`.

    The two may be the same memory: a segment is combined once it was sent. The lower
    rank's operand is the first on both sides of an exchange, as not every operation
    is commutative to the bit (NaN payloads, the sign of a zero's minimum).
    """
    most = SEGMENT_BYTES // target.itemsize
    theirs_first = source < comm.rank
    if 0 < len(outgoing) <= most and 0 < len(target) <= most:
        received = scratch(len(target), target.dtype)
        comm.Sendrecv(outgoing, to, TAG, received, source, TAG)
        _combine(operation, target, received, theirs_first)
        return
    slots = _two_slots(min(most, len(target)), target.dtype)
    sends, receives = list(_parts(outgoing, most)), list(_parts(target, most))
    in_flight: list[tuple[MPI.Request | None, MPI.Request | None]] = []

    def start(index: int) -> None:
        receive = send = None
        if index < len(receives):
            receive = comm.Irecv(slots[index % 2][: len(receives[index])], source, TAG)
        if index < len(sends):
            send = comm.Isend(sends[index], to, TAG)
        in_flight.append((receive, send))

    start(0)
    for index in range(max(len(sends), len(receives))):
        start(index + 1)
        for request in in_flight[index]:
            if request is not None:
                request.Wait()
        if index < len(receives):
            part = receives[index]
            _combine(operation, part, slots[index % 2][: len(part)], theirs_first)


def _two_slots(count: int, dtype: Any) -> tuple[Array, Array]:
    both = scratch(2 * count, dtype)
    return both[:count], both[count:]


def _combine(operation: Operation, target: Array, received: Array, theirs_first: bool) -> None:
    if theirs_first:
        operation.combine(received, target, out=target)
    else:
        operation.combine(target, received, out=target)


def _parts(array: Array, most: int) -> Iterator[Array]:
    for begin in range(0, len(array), most):
        yield array[begin : begin + most]
