"""Shards of gradients on GPUs, summed over the nodes by messages whose buffers are device memory.

MPI only sends and receives. Each rank's GPU sums one chunk of the shard, by the kernel that sums
within the node: in the order of the nodes, in float32, and 16 bits are rounded once, so that the
bits are those of `direct`.

An MPI library without support for such buffers may crash, so only separate jobs may try:
hvd_ext.arena.cuda.measure --mpi, and hvd_ext.arena.cuda.mpi_probe.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_ext.allreduce.algorithms import direct
from hvd_ext.arena.cuda.kernels import VECTOR_BYTES

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.allreduce.operations import Array
    from hvd_ext.job.progress_thread import Work


def on_device(address: int, length_bytes: int) -> Array:
    """Make an array of uint8 over device memory, for MPI; the host must not read it."""
    # An empty buffer has no address.
    memory: Any = (ctypes.c_char * max(1, length_bytes)).from_address(address)
    return np.frombuffer(memory, np.uint8, length_bytes)


def arriving_bytes(length_bytes: int, size: int) -> int:
    """Return the bytes of memory that a DeviceShard needs for arriving chunks."""
    return size * -(-length_bytes // (size * VECTOR_BYTES)) * VECTOR_BYTES


class DeviceShard:
    """The parts of a shard in a direct exchange, in one piece: a `direct.Wire`.

    Attributes:
        own: the chunk that this rank sums.
        vectors: its length, in 16 bytes.
        terms: addresses of the chunks that are summed into it, in the order of the ranks.
        sum_terms: sums them on the device, and waits for the end, because MPI knows no streams.
    """

    sum_terms: Callable[[], None]

    def __init__(self, rank: int, size: int, shard: Array, arriving: Array) -> None:
        """Cut a shard into chunks.

        Args:
            rank: number of this rank in the exchange.
            size: how many ranks take part.
            shard: on the device; whole pieces of 16 bytes.
            arriving: on the device, of at least `arriving_bytes`.
        """
        vectors = len(shard) // VECTOR_BYTES
        bounds = [vectors * index // size * VECTOR_BYTES for index in range(size + 1)]
        self._chunks = [shard[begin:end] for begin, end in pairwise(bounds)]
        self.own = self._chunks[rank]
        length = len(self.own)
        self.vectors = length // VECTOR_BYTES
        self._arriving = [arriving[length * other :][:length] for other in range(size)]
        self._arriving[rank] = self.own
        self.terms = [part.ctypes.data for part in self._arriving]

    def on(self, comm: MPI.Comm) -> Work:
        """Return the exchange on a communicator; call it when the shard is complete."""
        return partial(direct.exchange, comm, 1, self)

    def outgoing(self, piece: int, rank: int) -> Array:
        return self._chunks[rank]

    def incoming(self, piece: int, rank: int) -> Array:
        return self._arriving[rank]

    def add(self, piece: int, rank: int) -> None:
        """Do nothing: all chunks are added at once when they have arrived."""

    def result(self, piece: int) -> Array:
        self.sum_terms()
        return self.own

    def placed(self, piece: int, rank: int) -> Array:
        return self._chunks[rank]

    def finish(self, piece: int, rank: int) -> None:
        """Do nothing: the chunk was received into the shard itself."""
