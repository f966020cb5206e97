"""The memory behind a window: one region per rank of a node, mapped by all of them.

Regions are anonymous files (memfd_create) that peers open through /proc. They are
not bounded by /dev/shm and vanish with the last process that has them, however it
ends. Their pages are huge ones where the kernel allows it: a pass over 64 MiB then takes a
quarter less time.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
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
_HUGE_PAGE_BYTES = 2**21
# Linux's numbers, which Python's mmap does not know. MADV_COLLAPSE (Linux 6.1) needs no setting
# of the machine: it makes huge pages at once, of such as are there.
_MAP_FIXED, _MADV_COLLAPSE = 0x10, 25


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


def map_regions(node: MPI.Comm, region_bytes: int) -> list[memoryview]:
    """One region of each rank of the node, in rank order; collective over `node`.

    Raises:
        WindowError: on every rank of the node alike, with the first reason.
    """
    fd, failure = -1, ""
    try:
        fd = os.memfd_create("hvd_ext", os.MFD_CLOEXEC)
        # Pages are taken now: an error here, not a bus error in the middle of a step.
        os.posix_fallocate(fd, 0, region_bytes)
        _use_huge_pages(fd, region_bytes)
    except OSError as error:
        failure = f"{region_bytes} bytes of shared memory: {error.strerror}"
    return map_files(node, fd, region_bytes, failure)


def map_files(node: MPI.Comm, fd: int, file_bytes: int, failure: str = "") -> list[memoryview]:
    """Map an anonymous file of each rank of the node, in rank order; collective over `node`.

    Args:
        node: the ranks.
        fd: of memfd_create; is closed. The 16 bytes at CONTROL_BYTES are written over.
        file_bytes: how long this rank's file is.
        failure: why this rank has none.

    Raises:
        WindowError: on every rank of the node alike, with the first reason.
    """
    token = secrets.token_bytes(_TOKEN_BYTES)
    if not failure:
        os.pwrite(fd, token, CONTROL_BYTES)
    regions: list[memoryview] = []
    entries = node.allgather((os.getpid(), fd, token, file_bytes, failure))
    failure = next((entry[4] for entry in entries if entry[4]), "")
    if not failure:
        try:
            regions = [_open_region(*entry[:4]) for entry in entries]
        except OSError as error:
            reason = error.strerror or error
            failure = f"a peer's memory: {reason}: start a node's ranks inside one container"
    # Also the point up to which every rank has to keep its descriptor open.
    failures = [text for text in node.allgather(failure) if text]
    if fd >= 0:
        os.close(fd)
    if failures:
        raise WindowError(failures[0])
    return regions


def _open_region(pid: int, fd: int, token: bytes, region_bytes: int) -> memoryview:
    opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        # In another container the same numbers may name another process's file.
        if os.pread(opened, _TOKEN_BYTES, CONTROL_BYTES) != token:
            raise OSError(0, f"process {pid} is another one here, as between containers")
        return _map(opened, region_bytes)
    finally:
        os.close(opened)


def _use_huge_pages(fd: int, region_bytes: int) -> None:
    """Put a file's pages together; as many as can be, and none where the kernel refuses."""
    whole = region_bytes // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
    if whole:
        region = _map(fd, region_bytes)
        with contextlib.suppress(OSError):
            _libc_call("madvise", address(region), whole, _MADV_COLLAPSE)


def _map(fd: int, region_bytes: int) -> memoryview:
    """A file's memory, at an address at which its huge pages can be mapped as such."""
    reserved = mmap.mmap(-1, region_bytes + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE)
    begin = -address(reserved) % _HUGE_PAGE_BYTES
    # In the place of the reserved pages, and unmapped with them.
    _libc_call(
        "mmap",
        address(reserved) + begin,
        region_bytes,
        mmap.PROT_READ | mmap.PROT_WRITE,
        mmap.MAP_SHARED | _MAP_FIXED,
        fd,
        0,
    )
    return memoryview(reserved)[begin : begin + region_bytes]


def _libc_call(function: str, *arguments: int) -> None:
    """Call a function of libc that returns -1 when it fails.

    Raises:
        OSError: it has failed.
    """
    if _libc()[function](*map(ctypes.c_ssize_t, arguments)) == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def address(region: mmap.mmap | memoryview) -> int:
    """Where a region begins in this process."""
    return ctypes.addressof(ctypes.c_char.from_buffer(region))
