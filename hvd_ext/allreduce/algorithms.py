"""The one list of allreduce algorithms: table, cost model, tests and benchmarks share it.

An algorithm is a file of this folder that holds `allreduce(comm, buffer, operation)` and,
but for the MPI library's own, `cost(size, message_bytes)`. It is imported on use, as a
table is also read where there is neither MPI nor numpy.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.allreduce.operations import Array, Operation
    from hvd_ext.allreduce.work import Work

    Algorithm = Callable[["MPI.Comm", Array, Operation], None]
    Cost = Callable[[int, float], Work]

NATIVE = "native"
ALGORITHMS = (
    NATIVE,
    "ring",
    "recursive_doubling",
    "rabenseifner",
    "tree",
    "double_tree",
    "direct",
)
# Of one node, for a persistent allreduce: by memory that the ranks share, not by messages.
SHARED_MEMORY = "shared_memory"


@functools.cache
def implementation(name: str) -> Algorithm:
    """The function that reduces by the algorithm `name`, one of ALGORITHMS."""
    reduce: Algorithm = importlib.import_module(f"hvd_ext.allreduce.{name}").allreduce
    return reduce


@functools.cache
def cost(name: str) -> Cost:
    """The work of the algorithm `name`: any of ALGORITHMS except the library's own."""
    formula: Cost = importlib.import_module(f"hvd_ext.allreduce.{name}").cost
    return formula
