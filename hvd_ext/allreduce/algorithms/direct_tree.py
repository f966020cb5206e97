"""A sum by the direct exchange, in the order of a binary tree over the ranks' numbers.

The bits do not depend on the number of ranks that summed each term before; `summation_tree` says
why. The algorithms in `IN_TREE_ORDER` add in the same order where the number of ranks is a power of
two: partners at distance 1 come first, then those at 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.allreduce.algorithms import direct, implementation
from hvd_ext.allreduce.operations import OPERATIONS, Array
from hvd_ext.arithmetic.summation_tree import merges

if TYPE_CHECKING:
    from mpi4py import MPI

DIRECT_TREE = "direct_tree"
IN_TREE_ORDER = ("recursive_doubling", "rabenseifner")


def tree_algorithm(named: str) -> str:
    """Return the algorithm of a table, or the direct exchange if that one adds in another order."""
    return named if named in IN_TREE_ORDER else DIRECT_TREE


def prepare_tree_sum(
    algorithm: str, comm: MPI.Comm, buffer: Array, scale: float
) -> Callable[[], None]:
    """Plan the sum of `buffer` over all ranks in tree order, in place; the call may be repeated.

    Args:
        algorithm: the result of `tree_algorithm`.
        comm: a power of two of ranks.
        buffer: 1-D, contiguous, of float32 or float64; the same count on every rank.
        scale: factor of every element of the sum.
    """
    total = OPERATIONS["sum"]

    def run() -> None:
        with np.errstate(all="ignore"):  # overflow and NaN are results like any other
            if algorithm in IN_TREE_ORDER:
                implementation(algorithm)(comm, buffer, total)
            elif comm.size > 1:
                pieces = direct.count_pieces(comm.size, buffer.nbytes)
                direct.exchange(comm, pieces, _Tree(comm, buffer, total, pieces))
            np.multiply(buffer, scale, out=buffer)

    return run


class _Tree(direct.Plain):
    """The buffer unchanged, summed in tree order."""

    def add(self, piece: int, rank: int) -> None:
        for left, right in merges(rank):
            last = rank == self._size - 1 and left == 0
            to = self._own(piece) if last else self._term(piece, left)
            self._operation.combine(self._term(piece, left), self._term(piece, right), out=to)
