"""Arrays that the ranks of a node make together, and keep once in shared memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hvd_ext.data.packed.layout import aligned
from hvd_ext.errors import HvdExtError
from hvd_ext.shm.regions import WindowError, map_files, new_file
from hvd_ext.system.process import allow_singleton_mpi

if TYPE_CHECKING:
    from mpi4py import MPI

log = logging.getLogger("hvd_ext")

Arrays = tuple[NDArray[Any], ...]
_HEADER_BYTES = 4096  # map_files writes into it


def share_arrays(
    count: int, make: Callable[[int], Sequence[NDArray[Any]]], world: MPI.Comm | None = None
) -> list[Arrays]:
    """Make items for all ranks of a node, each item once and by one of the ranks.

    Their memory is anonymous: no file system limits it, and it is freed with the last rank, however
    that ends. While items are made, a rank holds one additional item. If ranks cannot share memory,
    as between containers, each makes and keeps all items, and a log line says so.

    Args:
        count: number of items.
        make: makes the arrays of an item; called for the items of this rank.
        world: the ranks of all nodes; None: all there are.

    Returns:
        The arrays of each item, which cannot be written to.

    Raises:
        HvdExtError: on every rank of the node alike, if `make` raised one on any, or there is
            no memory.
    """
    allow_singleton_mpi()
    from mpi4py import MPI

    node = (world or MPI.COMM_WORLD).Split_type(MPI.COMM_TYPE_SHARED)
    fd = -1
    error: HvdExtError | None = None
    # Offset, dtype and shape of each array.
    made: list[list[tuple[int, str, tuple[int, ...]]]] = []
    end = _HEADER_BYTES
    try:
        fd = new_file("hvd_ext.data")
        for item in range(node.rank, count, node.size):
            places = []
            for array in make(item):
                places.append((end, array.dtype.str, array.shape))
                _write(fd, np.ascontiguousarray(array), end)
                end = aligned(end + array.nbytes, 64)
            made.append(places)
        os.ftruncate(fd, end)
    except (OSError, MemoryError) as failure:
        error = HvdExtError(f"no memory for all samples, after {end} bytes of them: {failure}")
    except HvdExtError as failure:
        error = failure
    except Exception as failure:  # every rank must learn of the error
        error = HvdExtError(f"a sample cannot be made: {type(failure).__name__}: {failure}")
    everyones = node.allgather((made, error))
    errors = [entry[1] for entry in everyones if entry[1]]
    if errors:
        if fd >= 0:
            os.close(fd)
        node.Free()
        raise errors[0]
    size = node.size
    try:
        regions = [region.toreadonly() for region in map_files(node, fd, end)]
    except WindowError as problem:
        log.warning("hvd_ext: falling back to a copy of the samples on every rank: %s", problem)
        return share_arrays(count, make, MPI.COMM_SELF)
    finally:
        node.Free()
    return [
        tuple(
            np.ndarray(shape, dtype, regions[item % size], offset)
            for offset, dtype, shape in everyones[item % size][0][item // size]
        )
        for item in range(count)
    ]


def _write(fd: int, array: NDArray[Any], offset: int) -> None:
    # Written, not mapped: if there is no memory left, that is an error and not a signal.
    data = array.reshape(-1).view(np.uint8).data
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
