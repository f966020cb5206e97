"""The reductions, as MPI and as numpy call them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvd_ext.errors import UsageError

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Operation:
    """A reduction that is associative and commutative.

    Attributes:
        name: "sum", "average", "min", "max" or "product". Algorithms compute an average as a sum,
            and `prepare` divides it.
        combine: numpy's function, called as combine(a, b, out=a).
        mpi_name: the name of MPI's own operation in mpi4py.
    """

    name: str
    combine: Callable[..., Array]
    mpi_name: str


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("sum", np.add, "SUM"),
        Operation("average", np.add, "SUM"),
        Operation("min", np.minimum, "MIN"),
        Operation("max", np.maximum, "MAX"),
        Operation("product", np.multiply, "PROD"),
    )
}


def find_operation(name: str) -> Operation:
    """Look an operation up.

    Raises:
        UsageError: no operation has that name.
    """
    try:
        return OPERATIONS[name]
    except KeyError:
        raise UsageError(
            f"invalid operation {name!r}: use one of {', '.join(OPERATIONS)}"
        ) from None
