"""Ring: a reduce-scatter, then an allgather, each once around.

Every rank sends 2 (p-1)/p n bytes, which no algorithm can undercut, in 2 (p-1)
messages, which is why it is for long ones (Patarasuk and Yuan, JPDC 69, 2009).
Time: 2 (p-1) a + 2 (p-1)/p n b + (p-1)/p n g.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.allreduce.operations import Array, Operation

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
    received = np.empty(max(b - a for a, b in pairwise(bounds)), buffer.dtype)

    def chunk(index: int) -> Array:
        index %= size
        return buffer[bounds[index] : bounds[index + 1]]

    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        mine, partial = chunk(rank - step), chunk(rank - step - 1)
        incoming = received[: len(partial)]
        comm.Sendrecv(mine, right, 0, incoming, left, 0)
        operation.combine(partial, incoming, out=partial)
    for step in range(size - 1):
        comm.Sendrecv(chunk(rank + 1 - step), right, 1, chunk(rank - step), left, 1)
