"""A rank of hvd_ext in benchmarks.peers: what timed.h does with peers, with planned calls."""

from __future__ import annotations

import mmap
import os
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from testbed import ranks

# As in timed.h.
_SAMPLE_S, _MOST_CALLS, _LEAST_SAMPLES, _MOST_SAMPLES, _VALUES = 0.002, 400, 3, 25, 5
_HUGE_PAGE = 2 << 20
FORMATS = ("float32", "bfloat16", "float16")
BUFFERS = ("arena", "caller", "empty")


def work(least: int, most: int, size_s: float) -> None:
    """Be a rank; rank 0 reports [buffer, dtype, message_bytes, us] for each of them."""
    from mpi4py import MPI

    from hvd_ext.job.topology import discover

    world = MPI.COMM_WORLD
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[world.rank % len(cores)]})
    topology = discover(world, 60.0)
    # One for all sizes, as the peers have it.
    own = _on_huge_pages(most)
    found = []
    for dtype in FORMATS:
        message_bytes = least
        while message_bytes <= most:
            for buffer in BUFFERS:
                planned = _planned(topology, buffer, dtype, own[:message_bytes])
                time_us = 1e6 * _median_s(topology.world, planned, dtype, size_s)
                found.append([buffer, dtype, message_bytes, time_us])
            message_bytes *= 2
    if world.rank == 0:
        ranks.report(found)
    topology.close()


def _on_huge_pages(count_bytes: int) -> Any:
    """Zeros that lie as the buffer of timed.h does: numpy's begin in the middle of a cache line."""
    held = (-(-count_bytes // _HUGE_PAGE) + 1) * _HUGE_PAGE
    pages = mmap.mmap(-1, held, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    found = np.frombuffer(pages, np.uint8)
    begin = -found.ctypes.data % _HUGE_PAGE
    return found[begin : begin + count_bytes]


def _planned(topology: Any, buffer: str, dtype: str, own: Any) -> Any:
    from hvd_ext.allreduce import PersistentAllreduce, empty
    from hvd_ext.dtypes import DTYPES

    count = own.nbytes // DTYPES[dtype].item_bytes
    if buffer == "arena":
        return PersistentAllreduce.in_arena(topology, count, dtype)
    if buffer == "empty":
        return PersistentAllreduce(topology, empty(topology, count, dtype), dtype=dtype)
    return PersistentAllreduce(topology, own.view(DTYPES[dtype].stored_as), dtype=dtype)


def _median_s(world: Any, planned: Any, dtype: str, size_s: float) -> float:
    from hvd_ext.allreduce.timing import repeats_for, sample_s

    _verify(world, planned, dtype)
    call: Callable[[], object] = planned
    calls, once_s = repeats_for(world, call, _SAMPLE_S, _MOST_CALLS)
    rounds = min(_MOST_SAMPLES, max(_LEAST_SAMPLES, int(size_s / (once_s * calls))))
    return statistics.median(sample_s(world, call, calls) for _ in range(rounds))


def _verify(world: Any, planned: Any, dtype: str) -> None:
    values = np.arange(planned.buffer.size) % _VALUES
    planned.buffer[:] = _bits(values + world.rank % 3, dtype)
    planned()
    right = _bits(values * world.size + sum(r % 3 for r in range(world.size)), dtype)
    if not all(world.allgather(np.array_equal(planned.buffer, right))):
        raise RuntimeError(f"a wrong sum of {planned.buffer.size} {dtype}")
    planned.buffer.fill(0)


def _bits(values: Any, dtype: str) -> Any:
    """Small whole numbers, exact in every format, as that format stores them."""
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)
