"""The memory behind a window: one region per rank of a node, mapped by all of them.

Regions are anonymous files (memfd_create) that peers open through /proc. They are
not bounded by /dev/shm and vanish with the last process that has them, however it
ends.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from hvd_ext.errors import HvdExtError

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.job.topology import Topology

T = TypeVar("T")
CONTROL_BYTES = 128
_TOKEN_BYTES = 16


class WindowError(HvdExtError):
    """Ranks of a node cannot share memory; the message says why."""


def on_every_rank(topology: Topology, make: Callable[[], T]) -> T:
    """What `make` makes, if it can on every rank; collective over the world.

    Raises:
        WindowError: on every rank, with the first reason, if `make` raised it on any.
    """
    made: T | None = None
    problem = ""
    try:
        made = make()
    except WindowError as error:
        problem = f"on {topology.hosts[topology.world.rank]}: {error}"
    problems = [text for text in topology.world.allgather(problem) if text]
    if problems:
        raise WindowError(problems[0])
    return cast("T", made)


def map_regions(node: MPI.Comm, region_bytes: int) -> list[mmap.mmap]:
    """One region of each rank of the node, in rank order; collective over `node`.

    Raises:
        WindowError: on every rank of the node alike, with the first reason.
    """
    token = secrets.token_bytes(_TOKEN_BYTES)
    fd, failure = -1, ""
    try:
        fd = os.memfd_create("hvd_ext", os.MFD_CLOEXEC)
        # Pages are taken now: an error here, not a bus error in the middle of a step.
        os.posix_fallocate(fd, 0, region_bytes)
        os.pwrite(fd, token, CONTROL_BYTES)
    except OSError as error:
        failure = f"{region_bytes} bytes of shared memory: {error.strerror}"
    regions: list[mmap.mmap] = []
    entries = node.allgather((os.getpid(), fd, token, failure))
    failure = next((entry[3] for entry in entries if entry[3]), "")
    if not failure:
        try:
            regions = [
                _open_region(pid, peer, token, region_bytes) for pid, peer, token, _ in entries
            ]
        except OSError as error:
            failure = f"a peer's memory: {error.strerror or error}"
    # Also the point up to which every rank has to keep its descriptor open.
    failures = [text for text in node.allgather(failure) if text]
    if fd >= 0:
        os.close(fd)
    if failures:
        raise WindowError(failures[0])
    return regions


def _open_region(pid: int, fd: int, token: bytes, region_bytes: int) -> mmap.mmap:
    opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        # In another container the same numbers may name another process's file.
        if os.pread(opened, _TOKEN_BYTES, CONTROL_BYTES) != token:
            raise OSError(0, f"process {pid} is another one here, as between containers")
        return mmap.mmap(opened, region_bytes)
    finally:
        os.close(opened)


def address(region: mmap.mmap) -> int:
    """Where a region begins in this process."""
    return ctypes.addressof(ctypes.c_char.from_buffer(region))
