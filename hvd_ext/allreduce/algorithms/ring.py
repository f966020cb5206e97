"""Ring: a reduce-scatter, then an allgather, each once around.

Every rank sends 2 (p-1)/p n bytes, which no algorithm can undercut, in 2 (p-1)
messages, which is why it is for long ones (Patarasuk and Yuan, JPDC 69, 2009). A
chunk goes in segments, each passed on as soon as it is combined; receives are posted
ahead, so that the link never waits for this rank.
Time: 2 (p-1) a + 2 (p-1)/p n b + (p-1)/p n g.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING

from hvd_ext.allreduce.algorithms.segments import TAG, scratch, wait
from hvd_ext.allreduce.operations import Array, Operation
from hvd_ext.arithmetic.allreduce_work import SEGMENT_BYTES

if TYPE_CHECKING:
    from mpi4py import MPI

# Receives posted ahead: 2 MiB, more than a fast link holds in flight.
_AHEAD = 8


def allreduce(comm: MPI.Comm, buffer: Array, operation: Operation) -> None:
    """Reduce `buffer` (1-D, contiguous) over all ranks, in place.

    A chunk is summed along one path and the result passed on, so all ranks hold the
    same bits.
    """
    size, rank = comm.size, comm.rank
    if size == 1:
        return
    right, left = (rank + 1) % size, (rank - 1) % size
    bounds = [len(buffer) * index // size for index in range(size + 1)]
    chunks = [buffer[begin:end] for begin, end in pairwise(bounds)]
    longest = max(map(len, chunks))
    # All chunks have the same number of segments, so that all ranks count alike.
    segments = max(1, -(-longest * buffer.itemsize // SEGMENT_BYTES))
    capacity = -(-longest // segments)
    slots = scratch(_AHEAD * capacity, buffer.dtype)

    def part(unit: int) -> Array:
        """Segment by segment, the chunks in the order in which they pass this rank."""
        step, segment = divmod(unit, segments)
        chunk = chunks[(rank - step) % size]
        return chunk[len(chunk) * segment // segments : len(chunk) * (segment + 1) // segments]

    def receive_partial(unit: int) -> tuple[Array, MPI.Request]:
        begin = unit % _AHEAD * capacity
        slot = slots[begin : begin + len(part(segments + unit))]
        return slot, comm.Irecv(slot, left, TAG)

    def receive_result(unit: int) -> tuple[Array, MPI.Request]:
        # The data there was sent in the first half; that send must have ended.
        wait(sends[unit])
        return part(unit), comm.Irecv(part(unit), left, TAG)

    units = (size - 1) * segments
    sends = [comm.Isend(part(unit), right, TAG) for unit in range(segments)]
    arrivals = deque(receive_partial(unit) for unit in range(min(_AHEAD, units)))
    for unit in range(units):
        slot, arrival = arrivals.popleft()
        wait(arrival)
        partial = part(segments + unit)
        operation.combine(partial, slot, out=partial)
        # The last chunk is complete with this; sending it begins the allgather.
        sends.append(comm.Isend(partial, right, TAG))
        if unit + _AHEAD < units:
            arrivals.append(receive_partial(unit + _AHEAD))
    arrivals = deque(receive_result(unit) for unit in range(min(_AHEAD, units)))
    for unit in range(units):
        result, arrival = arrivals.popleft()
        wait(arrival)
        if unit < units - segments:
            sends.append(comm.Isend(result, right, TAG))
        if unit + _AHEAD < units:
            arrivals.append(receive_result(unit + _AHEAD))
    for request in sends[units:]:
        wait(request)
