"""Arrays that the ranks of a node make together, and keep once in memory that they share."""

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
    """Make items, each once a node and by one of its ranks, for all ranks of the node.

    Their memory is the kernel's own, bounded by no file system, and gone with the last rank,
    however it ends. While items are made, a rank holds one more. Where ranks cannot share
    memory, as between containers, each makes and keeps all, and a log line says so.

    Args:
        count: number of items.
        make: the arrays of an item; is called for those that fall to this rank.
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
    # Of each array: where it lies, its dtype and its shape.
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
    except Exception as failure:  # every rank must hear of it
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
    # Written, not mapped: where no memory is left, it is an error, not a signal.
    data = array.reshape(-1).view(np.uint8).data
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
