"""PowerSGD: a matrix as the product of two thin ones, one of which is sent in each step.

After Vogels et al., NeurIPS 2019, in the authors' later form with one allreduce a step: in even
steps the left factor is kept, made orthonormal, and the right one is summed over the nodes; in
odd steps the other way round. So each starts from the other's result (warm start). The
part of a node's share that the product leaves out is kept, and added to its next share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hvd_ext.allreduce.operations import Array
from hvd_ext.compression.codec import library

Prepare = Callable[[Array], Callable[[], None]]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Whole rows of a parameter in a share.

    Attributes:
        begin: first element in the share.
    """

    begin: int
    rows: int
    columns: int


def cut(begin: int, first: int, count: int, columns: int, rank: int) -> Matrix | None:
    """Return the rows in a part of a parameter that two factors would shorten; None if none.

    Args:
        begin: the part's first element in the share.
        first: the part's first element in the parameter.
        count: elements of the part.
        columns: elements of a row; 0 for a vector.
        rank: rank of the factors.
    """
    if not columns:
        return None
    skipped = -first % columns
    rows = max(0, count - skipped) // columns
    return Matrix(begin + skipped, rows, columns) if rank < min(rows, columns) else None


class LowRank:
    """The sum of a share over the nodes; elements outside of all matrices are sent uncompressed."""

    def __init__(
        self,
        share: Array,
        residual: Array,
        elements: Sequence[tuple[int, int]],
        matrices: Sequence[Matrix],
        rank: int,
        nodes: int,
        prepare: Prepare,
    ) -> None:
        """Plan the sum.

        Args:
            share: this node's share, float32, 1-D; holds the sum after each call.
            residual: as long as the share; zeros at first.
            elements: the parts [begin, end) that hold gradients, ascending.
            matrices: the matrices in these parts; the same on all nodes.
            rank: rank of the factors.
            nodes: number of nodes.
            prepare: plans the sum of a message over all nodes, in place.
        """
        self._share, self._residual, self._matrices = share, residual, matrices
        self._rank, self._nodes = rank, nodes
        self._raw = _outside(elements, matrices)
        raw = sum(end - begin for begin, end in self._raw)
        # A message for even steps, with factors of the columns' length, and one for odd ones.
        lengths = [[m.columns for m in matrices], [m.rows for m in matrices]]
        self._messages = [np.zeros(raw + rank * sum(n), np.float32) for n in lengths]
        self._factors = [
            np.split(message[raw:], rank * np.cumsum(of)[:-1]) if of else []
            for message, of in zip(self._messages, lengths, strict=True)
        ]
        self._sums = [prepare(message) for message in self._messages]
        self.codec_s = 0.0  # spent in coding so far
        self.restart()

    @property
    def message_bytes(self) -> float:
        """Bytes of one copy of the share in a message, on average."""
        return sum(message.nbytes for message in self._messages) / 2

    def restart(self) -> None:
        """Forget the factors: later sums depend only on the residual."""
        self._step = 0
        for message in self._messages:
            message.fill(0.0)

    def __call__(self) -> None:
        """Sum the share over the nodes."""
        start_s = time.perf_counter()
        odd = self._step % 2
        self._step += 1
        sent, kept = self._factors[odd], self._factors[1 - odd]
        c = library()
        for matrix, to, of in zip(self._matrices, sent, kept, strict=True):
            c.low_rank_orthonormalise(of.ctypes.data, len(of) // self._rank, self._rank)
            project = c.low_rank_to_left if odd else c.low_rank_to_right
            project(*self._of(matrix), self._rank, of.ctypes.data, to.ctypes.data)
        message, at = self._messages[odd], 0
        for begin, end in self._raw:
            # This part has no residual now, but an earlier layout of the buckets may have left one
            # here.
            own = message[at : at + end - begin]
            np.add(self._share[begin:end], self._residual[begin:end], out=own)
            self._residual[begin:end] = 0.0
            at += end - begin
        self.codec_s += time.perf_counter() - start_s
        self._sums[odd]()
        start_s = time.perf_counter()
        at = 0
        for begin, end in self._raw:
            self._share[begin:end] = message[at : at + end - begin]
            at += end - begin
        for matrix, to, of in zip(self._matrices, sent, kept, strict=True):
            left, right = (to, of) if odd else (of, to)
            c.low_rank_apply(
                *(*self._of(matrix), self._rank, 1.0 / self._nodes),
                *(left.ctypes.data, right.ctypes.data),
            )
        self.codec_s += time.perf_counter() - start_s

    def _of(self, matrix: Matrix) -> tuple[int, int, int, int]:
        at = 4 * matrix.begin
        return (
            *(self._share.ctypes.data + at, self._residual.ctypes.data + at),
            *(matrix.rows, matrix.columns),
        )


def _outside(
    elements: Sequence[tuple[int, int]], matrices: Sequence[Matrix]
) -> list[tuple[int, int]]:
    """Return the elements outside of all matrices."""
    found = []
    taken = iter(matrices)
    matrix = next(taken, None)
    for begin, end in elements:
        while matrix is not None and matrix.begin < end:
            if begin < matrix.begin:
                found.append((begin, matrix.begin))
            begin = matrix.begin + matrix.rows * matrix.columns
            matrix = next(taken, None)
        if begin < end:
            found.append((begin, end))
    return found
