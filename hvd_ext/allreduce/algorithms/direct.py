"""Direct: a reduce-scatter and an allgather in which every two ranks exchange their chunks.

Every rank sends 2 (p-1)/p n bytes as in the ring, but in two rounds of p-1 messages that are all in
flight at once. The owner of a chunk sums it in the order of the ranks, so the position of an
element in the message does not change its bits. Long messages go in pieces: one piece is summed
while the next one travels.
Time: 2 (p-1) a + 2 (p-1)/p n b + (p-1)/p n g.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from hvd_ext.allreduce.algorithms.segments import TAG, scratch, wait
from hvd_ext.allreduce.operations import Array, Operation
from hvd_ext.units import KIB, MIB

if TYPE_CHECKING:
    from mpi4py import MPI

_RESULTS = TAG + 1
# A chunk of a piece is small enough to be in the second-level cache when it is summed, and chunks
# that arrive at the same time need little memory. Long messages have several pieces, which overlap.
_CHUNK_BYTES, _ARRIVING_BYTES = 512 * KIB, 8 * MIB
_PIECES, _LEAST_CHUNK_BYTES = 4, 128 * KIB
UNDER_WAY = 2  # pieces at once: memory for this many pieces serves all of them, one after the other


class Wire(Protocol):
    """The parts of a message in a direct exchange. Each rank owns a chunk of each piece.

    Two pieces are in flight at once: before `outgoing` is called for piece n + 2, `add` has taken
    all of piece n.
    """

    def outgoing(self, piece: int, rank: int) -> Array:
        """Return this rank's part of the chunk of `rank`; it stays unchanged until it is sent."""

    def incoming(self, piece: int, rank: int) -> Array:
        """Return the memory for the part of this rank's chunk that comes from `rank`."""

    def add(self, piece: int, rank: int) -> None:
        """Add the part of a rank, this one included; called in the order of the ranks."""

    def result(self, piece: int) -> Array:
        """Return the sum of this rank's chunk, for all other ranks."""

    def placed(self, piece: int, rank: int) -> Array:
        """Return the memory for the sum of the chunk of `rank`; `outgoing` has been sent."""

    def finish(self, piece: int, rank: int) -> None:
        """Take over the sum that has arrived."""


def count_pieces(size: int, message_bytes: int, most_bytes: int = _CHUNK_BYTES) -> int:
    """Count the pieces of a message of `size` ranks, with chunks of at most `most_bytes`."""
    chunk_bytes = -(-message_bytes // size)
    most_bytes = min(most_bytes, max(_LEAST_CHUNK_BYTES, _ARRIVING_BYTES // size))
    return max(1, -(-chunk_bytes // most_bytes), min(_PIECES, chunk_bytes // _LEAST_CHUNK_BYTES))


def exchange(comm: MPI.Comm, pieces: int, wire: Wire) -> None:
    """Sum the pieces of all ranks, each chunk by its owner, and give the sums to all ranks."""
    size, rank = comm.size, comm.rank
    # Each rank begins with its neighbor, so that no rank is the first partner of all others.
    others = [(rank + distance) % size for distance in range(1, size)]
    arrivals: dict[tuple[int, int], MPI.Request] = {}
    sends: dict[tuple[int, int], MPI.Request] = {}
    results: dict[tuple[int, int], tuple[MPI.Request, MPI.Request]] = {}

    def start(piece: int) -> None:
        for other in others:
            arrivals[piece, other] = comm.Irecv(wire.incoming(piece, other), other, TAG)
        for other in others:
            sends[piece, other] = comm.Isend(wire.outgoing(piece, other), other, TAG)

    def combine(piece: int) -> None:
        for term in range(size):
            if term != rank:
                wait(arrivals.pop((piece, term)))
            wire.add(piece, term)
        result = wire.result(piece)
        for other in others:
            wait(sends.pop((piece, other)))
            results[piece, other] = (
                comm.Irecv(wire.placed(piece, other), other, _RESULTS),
                comm.Isend(result, other, _RESULTS),
            )

    def finish(piece: int) -> None:
        for other in others:
            arrival, send = results.pop((piece, other))
            wait(arrival)
            wire.finish(piece, other)
            wait(send)

    start(0)
    for piece in range(pieces):
        if piece + 1 < pieces:
            start(piece + 1)
        combine(piece)
        if piece > 0:
            finish(piece - 1)
    finish(pieces - 1)


def allreduce(comm: MPI.Comm, buffer: Array, operation: Operation) -> None:
    """Reduce `buffer` (1-D, contiguous) over all ranks, in place.

    The owner of a chunk combines it, so all ranks hold the same bits, and the position of an
    element in the buffer does not change them.
    """
    if comm.size > 1:
        pieces = count_pieces(comm.size, buffer.nbytes)
        exchange(comm, pieces, Plain(comm, buffer, operation, pieces))


class Plain:
    """The buffer unchanged, summed in the order of the ranks."""

    def __init__(self, comm: MPI.Comm, buffer: Array, operation: Operation, pieces: int) -> None:
        size, count = comm.size, len(buffer)
        parts = pieces * size
        bounds = [count * index // parts for index in range(parts + 1)]
        cut = [buffer[begin:end] for begin, end in pairwise(bounds)]
        self._chunks = [cut[begin : begin + size] for begin in range(0, parts, size)]
        self._rank, self._size, self._operation = comm.rank, size, operation
        self._longest = max(map(len, cut))
        self._slots = scratch(UNDER_WAY * size * self._longest, buffer.dtype)

    def outgoing(self, piece: int, rank: int) -> Array:
        return self._chunks[piece][rank]

    def incoming(self, piece: int, rank: int) -> Array:
        begin = (piece % UNDER_WAY * self._size + rank) * self._longest
        return self._slots[begin : begin + len(self._own(piece))]

    def add(self, piece: int, rank: int) -> None:
        if rank == 0:
            return
        # The sum is in the first term's memory until this rank's own part is added.
        sum_ = self._term(piece, 0)
        to = self._own(piece) if rank == self._size - 1 else sum_
        self._operation.combine(sum_, self._term(piece, rank), out=to)

    def result(self, piece: int) -> Array:
        return self._own(piece)

    def placed(self, piece: int, rank: int) -> Array:
        return self._chunks[piece][rank]

    def finish(self, piece: int, rank: int) -> None:
        """Do nothing: the sum was received into the buffer itself."""

    def _own(self, piece: int) -> Array:
        return self._chunks[piece][self._rank]

    def _term(self, piece: int, rank: int) -> Array:
        """Return the memory for the part of this rank's chunk that comes from `rank`."""
        return self._own(piece) if rank == self._rank else self.incoming(piece, rank)
