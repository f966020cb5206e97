"""Buffers that every rank of a node maps, so that they are reduced in place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.dtypes import DTYPES
from hvd_ext.errors import UsageError
from hvd_ext.shm.allocation import allocate, find
from hvd_ext.shm.regions import WindowError, on_every_rank
from hvd_ext.shm.window import NodeWindow

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.job.topology import Topology


def empty(topology: Topology, shape: int | Sequence[int], dtype: str = "float32") -> Array:
    """Allocate an array that all ranks of a node map and reduce in place; collective.

    A PersistentAllreduce of it, or of the same part of it on every rank, copies nothing. On several
    nodes it is like any other array. Its memory is freed with the last array, view and plan.

    Args:
        topology: the ranks, and how they share nodes.
        shape: the same on every rank.
        dtype: "float32", "bfloat16" (as uint16) or another one that is reduced.

    Returns:
        An array whose elements have no values yet.

    Raises:
        UsageError: an unknown dtype.
        WindowError: on every rank, if the ranks of some node cannot share memory.
    """
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r}: use one of {', '.join(DTYPES)}")
    count = math.prod(shape) if isinstance(shape, Sequence) else shape
    count_bytes = count * DTYPES[dtype].item_bytes
    memory = on_every_rank(topology, lambda: allocate(topology.node, count_bytes))
    return np.frombuffer(memory, DTYPES[dtype].stored_as, count).reshape(shape)


def window_over(topology: Topology, buffer: Array) -> NodeWindow | None:
    """A window over a buffer that the node's ranks map, as `empty` allocates it; collective."""
    place = find(topology.node, buffer.ctypes.data, buffer.nbytes)
    if place is None:
        return None
    try:
        return NodeWindow.over(topology.node, place)
    except WindowError:  # on all ranks: without memory for a window, nothing is staged either
        return None
