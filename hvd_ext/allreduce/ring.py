"""Ring: a reduce-scatter, then an allgather, each once around.

Every rank sends 2 (p-1)/p n bytes, which no algorithm can undercut, in 2 (p-1)
messages, which is why it is for long ones (Patarasuk and Yuan, JPDC 69, 2009). A
chunk goes in segments: while one is combined, the next is on its way.
Time: 2 (p-1) a + 2 (p-1)/p n b + (p-1)/p n g.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hvd_ext.allreduce.operations import Array, Operation
from hvd_ext.allreduce.segments import SEGMENT_BYTES, TAG, scratch, transfer

if TYPE_CHECKING:
    from mpi4py import MPI


def allreduce(comm: MPI.Comm, buffer: Array, operation: Operation) -> None:
    """Reduce `buffer` (1-D, contiguous) over all ranks, in place.

    A chunk is summed along one path and the result passed on, so all ranks hold the
    same bits.
    """
    size, rank = comm.size, comm.rank
    if size == 1:
        return
    bounds = [len(buffer) * index // size for index in range(size + 1)]
    chunks = [buffer[begin:end] for begin, end in pairwise(bounds)]
    _reduce_scatter(comm, chunks, operation)
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        mine, next_one = chunks[(rank + 1 - step) % size], chunks[(rank - step) % size]
        transfer(comm, mine, right, next_one, left)


def _reduce_scatter(comm: MPI.Comm, chunks: list[Array], operation: Operation) -> None:
    """Have rank r hold the reduced chunk r + 1."""
    size, rank = comm.size, comm.rank
    right, left = (rank + 1) % size, (rank - 1) % size
    longest = max(map(len, chunks))
    # All chunks have as many segments, so that ranks count them alike.
    segments = max(1, -(-longest * chunks[0].itemsize // SEGMENT_BYTES))
    capacity = -(-longest // segments)
    slots = scratch(2 * capacity, chunks[0].dtype)

    def part(unit: int, behind: int) -> Array:
        step, segment = divmod(unit, segments)
        chunk = chunks[(rank - step - behind) % size]
        return chunk[len(chunk) * segment // segments : len(chunk) * (segment + 1) // segments]

    def send(unit: int) -> MPI.Request:
        return comm.Isend(part(unit, 0), right, TAG)

    def receive(unit: int) -> tuple[Array, MPI.Request]:
        begin = unit % 2 * capacity
        slot = slots[begin : begin + len(part(unit, 1))]
        return slot, comm.Irecv(slot, left, TAG)

    units = (size - 1) * segments
    incoming, sending = receive(0), send(0)
    for unit in range(units):
        more = unit + 1 < units
        (slot, arrival), sent = incoming, sending
        if more:
            incoming = receive(unit + 1)
        # What goes out next was combined a whole step ago, unless a step is one segment.
        if more and segments > 1:
            sending = send(unit + 1)
        arrival.Wait()
        partial = part(unit, 1)
        operation.combine(partial, slot, out=partial)
        if more and segments == 1:
            sending = send(unit + 1)
        sent.Wait()
