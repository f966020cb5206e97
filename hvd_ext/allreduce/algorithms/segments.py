"""Long messages in segments: one segment is reduced while the next one is transferred.

Segments also bound the memory. Every algorithm receives what it has yet to
combine in `scratch`, which holds a few segments however long the message is, is kept
between calls (fresh pages cost more than the sum), and belongs to one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_ext.allreduce.operations import Array, Operation
from hvd_ext.arithmetic.allreduce_work import SEGMENT_BYTES
from hvd_ext.job.waiting import until
from hvd_ext.units import GIB

if TYPE_CHECKING:
    from mpi4py import MPI

# MPI counts with an int, and libraries compute bytes with one.
MOST_BYTES = GIB
TAG = 1


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
    until(request.Test)


def transfer(comm: MPI.Comm, outgoing: Array, to: int, incoming: Array, source: int) -> None:
    """Send one array and receive another at once; an empty one makes no message.

    Long ones go in segments if both have elements. An MPI library announces a long message. Over
    TCP, the answer to that waits behind the data that its sender is sending, so the second
    direction would begin only after the first one has ended.
    """
    at_once = len(outgoing) > 0 and len(incoming) > 0
    most = (SEGMENT_BYTES if at_once else MOST_BYTES) // outgoing.itemsize
    if at_once and max(len(outgoing), len(incoming)) <= most:
        comm.Sendrecv(outgoing, to, TAG, incoming, source, TAG)
        return
    sends, receives = list(_parts(outgoing, most)), list(_parts(incoming, most))
    _stream(comm, sends, to, receives, source)


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
    capacity = min(most, len(target))
    both = scratch(2 * capacity, target.dtype)
    slots = both[:capacity], both[capacity:]
    targets = list(_parts(target, most))
    received_in = [slots[index % 2][: len(part)] for index, part in enumerate(targets)]

    def combine(index: int) -> None:
        _combine(operation, targets[index], received_in[index], theirs_first)

    _stream(comm, list(_parts(outgoing, most)), to, received_in, source, combine)


def _stream(
    comm: MPI.Comm,
    sends: Sequence[Array],
    to: int,
    receives: Sequence[Array],
    source: int,
    arrived: Callable[[int], None] = lambda _: None,
) -> None:
    """Send and receive segments, two of each under way; `arrived` is called after each of them."""
    in_flight: list[tuple[MPI.Request | None, MPI.Request | None]] = []

    def start(index: int) -> None:
        receive = send = None
        if index < len(receives):
            receive = comm.Irecv(receives[index], source, TAG)
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
            arrived(index)


def _combine(operation: Operation, target: Array, received: Array, theirs_first: bool) -> None:
    if theirs_first:
        operation.combine(received, target, out=target)
    else:
        operation.combine(target, received, out=target)


def _parts(array: Array, most: int) -> Iterator[Array]:
    for begin in range(0, len(array), most):
        yield array[begin : begin + most]
