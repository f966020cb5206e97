"""A share's sum over the nodes, in a format of fewer bytes: the same bits on every node.

The exchange is `direct`'s. Each node encodes its copy of a chunk once. The chunk's owner adds
the copies of all nodes in their order in float32 and encodes the sum once, and all nodes decode it:
two roundings, for any number of nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.allreduce.algorithms import direct
from hvd_ext.allreduce.algorithms.segments import scratch
from hvd_ext.allreduce.operations import Array
from hvd_ext.compression.codec import Message, whole
from hvd_ext.compression.formats import BF16, FP16, Format
from hvd_ext.units import KIB

if TYPE_CHECKING:
    from mpi4py import MPI

# Bytes of a chunk in a message. Compression is for slow links; the last messages of a bucket, which
# overlap with nothing, should be short there.
_WIRE_BYTES = 128 * KIB
_LINE = 16  # elements of float32: chunks begin at a cache line


def prepare_coded(
    comm: MPI.Comm,
    share: Array,
    runs: Sequence[tuple[int, int, Format]],
    residual: Array | None,
    scale: float = 1.0,
) -> Coded:
    """Plan the sum of a share of float32 over all ranks, in place.

    Args:
        comm: one rank of each node.
        share: 1-D; elements outside of all runs stay unchanged.
        runs: first element, number of elements and format of each run, ascending; the same on all
            ranks.
        residual: this rank's residual, as long as the share, updated in each call; None if no
            format has one.
        scale: factor of every element of the sum, applied before encoding.
    """
    plan = _plan(len(share), comm.size, runs)
    return _Coded(comm, plan, share, residual, scale)


def prepare_half(comm: MPI.Comm, share: Array, dtype: str) -> Coded:
    """Plan the sum of a share of 16-bit floats over all ranks, in place.

    They are sent uncompressed, added in float32 and rounded once.

    Args:
        comm: one rank of each node.
        share: 1-D; bfloat16 as an array of uint16.
        dtype: "float16" or "bfloat16".
    """
    runs = whole(len(share), BF16 if dtype == "bfloat16" else FP16)
    return _Half(comm, _plan(len(share), comm.size, runs), share)


def _plan(count: int, size: int, runs: Sequence[tuple[int, int, Format]]) -> list[list[Message]]:
    """The messages of each piece: one for each rank's chunk."""
    wire_bytes = Message(0, count, runs).bytes
    most_bytes = 4 * count * _WIRE_BYTES // wire_bytes if wire_bytes else 4 * count
    pieces = direct.count_pieces(size, 4 * count, max(1, most_bytes))
    lines = -(-count // _LINE)
    parts = pieces * size
    bounds = [min(count, lines * index // parts * _LINE) for index in range(parts + 1)]
    messages = [Message(bounds[i], bounds[i + 1], runs) for i in range(parts)]
    return [messages[begin : begin + size] for begin in range(0, parts, size)]


class Coded(direct.Wire):
    """A planned sum, to be called; it has messages that arrive, and sums its chunk in float32."""

    def __init__(self, comm: MPI.Comm, messages: list[list[Message]]) -> None:
        self._comm, self._rank, self._messages = comm, comm.rank, messages
        self._size = len(messages[0])
        self._longest_bytes = max(m.bytes for piece in messages for m in piece)
        self._longest = max(_length(m) for piece in messages for m in piece)

    def __call__(self) -> None:
        """Sum over all ranks, in place."""
        direct.exchange(self._comm, len(self._messages), self)

    @property
    def codec_s(self) -> float:
        """Time spent in coding so far."""
        return sum(message.codec_s for piece in self._messages for message in piece)

    def incoming(self, piece: int, rank: int) -> Array:
        return self._slot("incoming", piece, rank)[: self._own(piece).bytes]

    def add(self, piece: int, rank: int) -> None:
        # What this rank gives itself is what it adds to its own chunk.
        message = (self.outgoing if rank == self._rank else self.incoming)(piece, rank)
        self._own(piece).decode(message, self._sum(piece), add=rank > 0)

    def _own(self, piece: int) -> Message:
        return self._messages[piece][self._rank]

    def _slot(self, purpose: str, piece: int, rank: int) -> Array:
        """Return memory of this thread for one message; the piece after the next one reuses it."""
        slots = scratch(direct.UNDER_WAY * self._size * self._longest_bytes, np.uint8, purpose)
        begin = (piece % direct.UNDER_WAY * self._size + rank) * self._longest_bytes
        return slots[begin : begin + self._longest_bytes]

    def _sum(self, piece: int) -> Array:
        return scratch(self._longest, np.float32, "sum")[: _length(self._own(piece))]


class _Coded(Coded):
    """A share of float32, in formats."""

    def __init__(
        self,
        comm: MPI.Comm,
        messages: list[list[Message]],
        share: Array,
        residual: Array | None,
        scale: float,
    ) -> None:
        super().__init__(comm, messages)
        self._share, self._residual, self._scale = share, residual, scale

    def outgoing(self, piece: int, rank: int) -> Array:
        message = self._messages[piece][rank]
        out = self._slot("outgoing", piece, rank)[: message.bytes]
        message.encode(self._share[message.elements], self._kept(message), out, self._scale)
        return out

    def result(self, piece: int) -> Array:
        own = self._own(piece)
        out = self._slot("results", piece, self._rank)[: own.bytes]
        # The residual already has the rounding error of this rank's own part; the sum includes it.
        own.encode(self._sum(piece), self._kept(own), out)
        own.decode(out, self._share[own.elements], add=False)
        return out

    def placed(self, piece: int, rank: int) -> Array:
        return self._slot("results", piece, rank)[: self._messages[piece][rank].bytes]

    def finish(self, piece: int, rank: int) -> None:
        message = self._messages[piece][rank]
        message.decode(self.placed(piece, rank), self._share[message.elements], add=False)

    def _kept(self, message: Message) -> Array | None:
        return None if self._residual is None else self._residual[message.elements]


class _Half(Coded):
    """A share of 16-bit floats, as it is."""

    def __init__(self, comm: MPI.Comm, messages: list[list[Message]], share: Array) -> None:
        super().__init__(comm, messages)
        self._share = share.view(np.uint16)  # MPI has no float16

    def incoming(self, piece: int, rank: int) -> Array:
        slot = self._slot("incoming", piece, rank).view(np.uint16)
        return slot[: _length(self._own(piece))]

    def outgoing(self, piece: int, rank: int) -> Array:
        return self._share[self._messages[piece][rank].elements]

    def result(self, piece: int) -> Array:
        own = self._own(piece)
        out = self._slot("results", piece, self._rank)
        own.encode(self._sum(piece), None, out)
        share = self._share[own.elements]
        share[:] = out.view(np.uint16)[: len(share)]
        return share

    def placed(self, piece: int, rank: int) -> Array:
        return self._share[self._messages[piece][rank].elements]

    def finish(self, piece: int, rank: int) -> None:
        """Do nothing: the sum was received into the share itself."""


def _length(message: Message) -> int:
    return message.elements.stop - message.elements.start
