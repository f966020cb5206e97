"""The step that each rank of the node has begun, for ranks that have called hvd.join().

A rank that has joined must learn that others take a step, and of which optimizer. They write it
into memory that the node's ranks share, which costs one store in a step, and only the ranks that
have joined read it. If joining is refused, the ranks that wait for the refused rank in a step must
learn that, too.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.shm.regions import map_regions

if TYPE_CHECKING:
    from mpi4py import MPI

SHARDED_JOIN = (
    "hvd.join() with a sharded optimizer: a rank that has joined would not update its part of "
    "the parameters: give every rank as many batches, or leave sharded out"
)
REPRODUCIBLE_JOIN = (
    "hvd.join() with reproducible=: a rank that has joined would not take its slots of a step: "
    "give every rank as many batches, or leave reproducible out"
)

# The first word is the number of steps begun, then the optimizer of the last one: one store.
# The second is 1 + the number of steps begun when the rank was last refused to join, the third
# that number when it last joined.
_OPTIMIZER_BITS = 24


class BegunSteps:
    """The steps of all optimizers, which all ranks take in the same order."""

    def __init__(self, node: MPI.Comm) -> None:
        """Share a word with every rank; collective over `node`.

        Raises:
            WindowError: on every rank of the node alike, with the first reason.
        """
        regions = map_regions(node, mmap.PAGESIZE)
        self._words = [np.frombuffer(region, np.uint64, 3) for region in regions]
        self._own = self._words[node.rank]
        self._count = 0

    def begin(self, optimizer: int) -> None:
        self._count += 1
        self._own[0] = self._count << _OPTIMIZER_BITS | optimizer

    def by_others(self) -> int | None:
        """Return the optimizer whose step other ranks have begun and this one has not, or None."""
        latest = max(int(word[0]) for word in self._words)
        if latest >> _OPTIMIZER_BITS <= self._count:
            return None
        return latest & ((1 << _OPTIMIZER_BITS) - 1)

    def note_join(self) -> None:
        """Announce that this rank joins now."""
        self._own[2] = self._count

    def joined_last(self, by_horovod: int) -> int:
        """Return the rank that joined last, once all have joined.

        Args:
            by_horovod: the last rank by Horovod, which does not see steps.
        """
        steps = [int(word[2]) for word in self._words]
        return by_horovod if steps[by_horovod] == max(steps) else steps.index(max(steps))

    def refuse_join(self) -> None:
        """Announce that this rank called join and was refused."""
        self._own[1] = 1 + self._count

    def refused_others(self) -> list[int]:
        """Return the ranks of the node that were refused while this one has begun a step."""
        words = [(int(begun) >> _OPTIMIZER_BITS, int(refused)) for begun, refused, _ in self._words]
        # If all ranks are refused and continue, some are later than others.
        return [
            rank
            for rank, (count, refused) in enumerate(words)
            if refused == 1 + count <= self._count and refused != self._own[1]
        ]
