"""Which step each rank of the node has begun, for those that have joined: hvd.join().

A rank that has joined must learn that others take a step, and of which optimizer. They
write it into memory that the node's ranks share, which costs a step one store, and
only the ranks that have joined read it.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.shm.regions import map_regions

if TYPE_CHECKING:
    from mpi4py import MPI

# A word is the number of steps begun, then the optimizer of the last one: one store.
_OPTIMIZER_BITS = 24


class BegunSteps:
    """The steps of all optimizers, which every rank takes in the same order."""

    def __init__(self, node: MPI.Comm) -> None:
        """Share a word with every rank; collective over `node`.

        Raises:
            WindowError: on every rank of the node alike, with the first reason.
        """
        regions = map_regions(node, mmap.PAGESIZE)
        self._words = [np.frombuffer(region, np.uint64, 1) for region in regions]
        self._own = self._words[node.rank]
        self._count = 0

    def begin(self, optimizer: int) -> None:
        self._count += 1
        self._own[0] = self._count << _OPTIMIZER_BITS | optimizer

    def by_others(self) -> int | None:
        """The optimizer whose step others have begun, and this rank has not; or None."""
        latest = max(int(word[0]) for word in self._words)
        if latest >> _OPTIMIZER_BITS <= self._count:
            return None
        return latest & ((1 << _OPTIMIZER_BITS) - 1)
