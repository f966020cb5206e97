"""The one list of algorithms: the table, the tests and the benchmarks share it.

`hierarchical` is not here: it is how a bucket of the arena is reduced, straight in
its node's memory (hvd_ext.arena), and takes one of these between nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hvd_ext.allreduce import native, recursive_doubling, ring
from hvd_ext.allreduce.operations import Array, Operation

if TYPE_CHECKING:
    from mpi4py import MPI

Algorithm = Callable[["MPI.Comm", Array, Operation], None]

ALGORITHMS: dict[str, Algorithm] = {
    "native": native.allreduce,
    "ring": ring.allreduce,
    "recursive_doubling": recursive_doubling.allreduce,
}
