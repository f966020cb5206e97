"""Shards of gradients on GPUs, summed over the nodes by messages whose buffers are device memory.

MPI only sends and receives. Each rank's GPU sums one chunk of the shard, by the kernel that sums
within the node: in the order of the nodes, in float32, and 16 bits are rounded once, so that the
bits are those of `direct`.

An MPI library that takes no such buffers may crash, so only separate jobs may try:
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

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.allreduce.operations import Array
    from hvd_ext.job.progress_thread import Work

_VECTOR_BYTES = 16


def on_device(address: int, length_bytes: int) -> Array:
    """Device memory as MPI takes it: an array of uint8 that the host must not look into."""
    # An empty buffer has no address.
    memory: Any = (ctypes.c_char * max(1, length_bytes)).from_address(address)
    return np.frombuffer(memory, np.uint8, length_bytes)


def arriving_bytes(length_bytes: int, size: int) -> int:
    """How much memory a DeviceShard needs for what arrives."""
    return size * -(-length_bytes // (size * _VECTOR_BYTES)) * _VECTOR_BYTES


class DeviceShard:
    """The parts of a shard in a direct exchange, in one piece: a `direct.Wire`.

    Attributes:
        own: the chunk that this rank sums.
        vectors: its length, in 16 bytes.
        terms: addresses of what is summed into it, in the order of the ranks.
        sum_terms: has the device do that, and waits for it: MPI knows no streams.
    """

    sum_terms: Callable[[], None]

    def __init__(self, rank: int, size: int, shard: Array, arriving: Array) -> None:
        """Cut a shard into chunks.

        Args:
            rank: of the exchange.
            size: how many ranks take part.
            shard: on the device; whole pieces of 16 bytes.
            arriving: on the device, of at least `arriving_bytes`.
        """
        vectors = len(shard) // _VECTOR_BYTES
        bounds = [vectors * index // size * _VECTOR_BYTES for index in range(size + 1)]
        self._chunks = [shard[begin:end] for begin, end in pairwise(bounds)]
        self.own = self._chunks[rank]
        length = len(self.own)
        self.vectors = length // _VECTOR_BYTES
        self._arriving = [arriving[length * other :][:length] for other in range(size)]
        self._arriving[rank] = self.own
        self.terms = [part.ctypes.data for part in self._arriving]

    def on(self, comm: MPI.Comm) -> Work:
        """The exchange on a communicator; to be called when the shard is there."""
        return partial(direct.exchange, comm, 1, self)

    def outgoing(self, piece: int, rank: int) -> Array:
        return self._chunks[rank]

    def incoming(self, piece: int, rank: int) -> Array:
        return self._arriving[rank]

    def add(self, piece: int, rank: int) -> None:
        """All are added at once, when they are there."""

    def result(self, piece: int) -> Array:
        self.sum_terms()
        return self.own

    def placed(self, piece: int, rank: int) -> Array:
        return self._chunks[rank]

    def finish(self, piece: int, rank: int) -> None:
        """It was placed in the shard itself."""
