"""The one list of allreduce algorithms: table, tests and benchmarks share it.

An algorithm is a file of this folder that holds `allreduce(comm, buffer, operation)`, and a cost
formula of the same name in hvd_ext/arithmetic/allreduce_work.py, which the profiler and the
simulator read too. The file is imported on use, as a table is also read where there is neither
MPI nor numpy.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from hvd_ext.arithmetic.allreduce_work import FORMULAS

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.allreduce.operations import Array, Operation

    Algorithm = Callable[["MPI.Comm", Array, Operation], None]

NATIVE = "native"
ALGORITHMS = (NATIVE, *FORMULAS)
# For a persistent allreduce on one node: through memory that the ranks share, not by messages.
SHARED_MEMORY = "shared_memory"


@functools.cache
def implementation(name: str) -> Algorithm:
    """The function that reduces by the algorithm `name`, one of ALGORITHMS."""
    reduce: Algorithm = importlib.import_module(f"{__name__}.{name}").allreduce
    return reduce
