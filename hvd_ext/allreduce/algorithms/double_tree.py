"""Double binary tree: each half of the message goes up and down a separate tree.

A rank that has children in one tree has none in the other, so that every rank both
sends and receives at full speed; segments follow one another through the trees
(Sanders, Speck and Traeff, Parallel Computing 35, 2009). For long messages on many
ranks, where a ring's 2 (p-1) messages take too long.
Time: about 2 lg p a + 2 n b + n g + O(sqrt(n b a lg p)).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from hvd_ext.allreduce.algorithms.segments import scratch
from hvd_ext.allreduce.operations import Array, Operation
from hvd_ext.arithmetic.allreduce_work import SEGMENT_BYTES

if TYPE_CHECKING:
    from mpi4py import MPI

_UP, _DOWN = 2, 4  # tags; the tree's number is added


def allreduce(comm: MPI.Comm, buffer: Array, operation: Operation) -> None:
    """Reduce `buffer` (1-D, contiguous) over all ranks, in place.

    The root of a tree has the result of its half first and all others get its copy:
    the same bits.
    """
    size, rank = comm.size, comm.rank
    if size == 1:
        return
    middle = len(buffer) // 2
    halves = (buffer[:middle], buffer[middle:])
    longest = len(halves[1])
    segments = max(1, -(-longest * buffer.itemsize // SEGMENT_BYTES))
    capacity = -(-longest // segments)
    memory = scratch(8 * capacity, buffer.dtype)
    trees = []
    for number, half in enumerate(halves):
        bounds = [len(half) * index // segments for index in range(segments + 1)]
        parent, children = family(rank, size, number)
        slots = [
            memory[i * capacity : (i + 1) * capacity] for i in range(4 * number, 4 * number + 4)
        ]
        parts = [half[begin:end] for begin, end in pairwise(bounds)]
        trees.append(_Tree(comm, number, parts, parent, children, slots))
    # Every rank takes these steps in the same order, and waits only for the same step,
    # or an earlier one, of another rank: no deadlock is possible. A segment comes down
    # once it has had the time to go all the way up.
    delay = 2 * (size - 1).bit_length()
    for step in range(segments + delay):
        for tree in trees:
            if step < segments:
                tree.reduce(step, operation)
            if step >= delay:
                tree.broadcast(step - delay)
    for tree in trees:
        tree.finish()


@dataclass
class _Tree:
    """One half of the message on its way through its tree, as this rank sees it."""

    comm: MPI.Comm
    number: int
    parts: list[Array]
    parent: int | None
    children: tuple[int, ...]
    slots: list[Array]
    arrivals: dict[tuple[int, int], MPI.Request] = field(default_factory=dict)
    sent_up: list[MPI.Request] = field(default_factory=list)
    sent_down: list[MPI.Request] = field(default_factory=list)
    result: MPI.Request | None = None

    def reduce(self, index: int, operation: Operation) -> None:
        """Combine segment `index` of all children into this rank's, and pass it up."""
        if index == 0:
            self._await_children(0)
        self._await_children(index + 1)
        part = self.parts[index]
        for place, child in enumerate(self.children):
            self.arrivals.pop((child, index)).Wait()
            operation.combine(part, self._slot(place, index), out=part)
        if self.parent is not None:
            self.sent_up.append(self.comm.Isend(part, self.parent, _UP + self.number))

    def broadcast(self, index: int) -> None:
        """Take segment `index` of the result from the parent, and pass it down."""
        part = self.parts[index]
        if self.parent is not None:
            if self.result is None:
                self.result = self._await_parent(0)
            arrived, self.result = self.result, self._await_parent(index + 1)
            if arrived is not None:
                arrived.Wait()
        for child in self.children:
            self.sent_down.append(self.comm.Isend(part, child, _DOWN + self.number))

    def finish(self) -> None:
        """Wait until the children have everything."""
        for request in self.sent_down:
            request.Wait()

    def _await_children(self, index: int) -> None:
        if index < len(self.parts):
            for place, child in enumerate(self.children):
                slot = self._slot(place, index)
                self.arrivals[child, index] = self.comm.Irecv(slot, child, _UP + self.number)

    def _await_parent(self, index: int) -> MPI.Request | None:
        assert self.parent is not None
        if index >= len(self.sent_up):
            return None
        # The result is received where the partial sum lies, once that is on its way.
        self.sent_up[index].Wait()
        return self.comm.Irecv(self.parts[index], self.parent, _DOWN + self.number)

    def _slot(self, place: int, index: int) -> Array:
        return self.slots[2 * place + index % 2][: len(self.parts[index])]


@functools.lru_cache(maxsize=64)
def family(rank: int, size: int, tree: int) -> tuple[int | None, tuple[int, ...]]:
    """Parent (None for the root) and at most two children of `rank` in tree 0 or 1.

    The second tree is the first with ranks mirrored, or shifted by one where their
    number is odd: the odd ranks, which are leaves in the first, change places with
    the even ones.
    """

    def place(rank: int) -> int:
        if tree == 0:
            return rank
        return size - 1 - rank if size % 2 == 0 else (rank - 1) % size

    parents = {other: _parent(place(other), size) for other in range(size)}
    rank_at = {place(other): other for other in range(size)}
    parent = parents[rank]
    children = tuple(other for other in range(size) if parents[other] == place(rank))
    return None if parent is None else rank_at[parent], children


def _parent(place: int, size: int) -> int | None:
    """The parent in a tree in which every leaf, and no other, has an odd place.

    A place's height is the number of its trailing zero bits; its parent is the
    neighbor one higher, or the one below it where that is beyond the end.
    """
    if place == 0:
        return None
    step = place & -place
    upper = (place - step) | (2 * step)
    return upper if upper < size else place - step
