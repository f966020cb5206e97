"""The memory behind a window: one region per rank of a node, mapped by all of them.

Regions are anonymous files (memfd_create) that peers open through /proc. /dev/shm does not limit
them, and they vanish with the last process that maps them, however it ends. Their pages are huge if
the kernel allows it: a pass over 64 MiB then takes a quarter less time.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from hvd_ext.errors import HvdExtError
from hvd_ext.shm import forks
from hvd_ext.shm.libc import MAP_FIXED, address, libc, libc_call
from hvd_ext.system.node_memory import FreeMemory, free_memory
from hvd_ext.units import format_bytes

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.job.topology import Topology

T = TypeVar("T")
CONTROL_BYTES = 128
TOKEN_BYTES = 16
_HUGE_PAGE_BYTES = 2**21
# Linux's numbers, which Python's mmap lacks. MADV_COLLAPSE (Linux 6.1) needs no setting of the
# machine: it makes huge pages at once, from those that are available.
_MADV_COLLAPSE, _MFD_CLOEXEC = 25, 1


class WindowError(HvdExtError):
    """Ranks of a node cannot share memory; the message says why."""


def on_every_rank(topology: Topology, make: Callable[[], T]) -> T:
    """Call `on_every_rank_of` for the world of a topology; the reason names the host."""

    def made_here() -> T:
        try:
            return make()
        except WindowError as error:
            raise WindowError(f"on {topology.hosts[topology.world.rank]}: {error}") from error

    return on_every_rank_of(topology.world, made_here)


def on_every_rank_of(
    comm: MPI.Comm, make: Callable[[], T], kind: type[HvdExtError] = WindowError
) -> T:
    """The result of `make`, if it succeeds on every rank; collective.

    Raises:
        HvdExtError: of this kind, on every rank with the first reason, if `make` raised it on any.
    """
    made: T | None = None
    problem = ""
    try:
        made = make()
    except kind as error:
        problem = str(error)
    if problems := [text for text in comm.allgather(problem) if text]:
        raise kind(problems[0])
    return cast("T", made)


def map_regions(node: MPI.Comm, region_bytes: int, huge: bool = True) -> list[memoryview]:
    """Make one region of each rank of the node, in rank order; collective over `node`.

    Args:
        node: the ranks.
        region_bytes: length of this rank's region.
        huge: whether as many of its pages as possible become huge, which takes a pass over them.

    Raises:
        WindowError: on every rank of the node alike, with the first reason.
    """
    own = _free_memory()
    told = node.allgather((region_bytes, None if own is None else tuple(own)))
    wanted = [(count, None if free is None else FreeMemory(*free)) for count, free in told]
    fd, failure = -1, ""
    try:
        _check_free(wanted, node.rank)
        fd = new_file("hvd_ext")
        # Pages are allocated now, so that too little memory is an error here and not a bus error in
        # a step.
        os.posix_fallocate(fd, 0, region_bytes)
        if huge:
            _use_huge_pages(fd, region_bytes)
    except Exception as error:  # every rank must learn of any error
        failure = f"{region_bytes} bytes of shared memory: {_reason(error)}"
    return map_files(node, fd, region_bytes, failure)


def new_file(name: str) -> int:
    """Return the descriptor of an anonymous file, empty and closed on exec.

    Raises:
        WindowError: this system has no such files.
        OSError: it refuses one.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    # Python was built against a C library without it (glibc before 2.27), and runs on another.
    try:
        create = libc().memfd_create
    except AttributeError:
        raise WindowError("the C library has no memfd_create: use glibc 2.27 or newer") from None
    fd = int(create(name.encode(), ctypes.c_uint(_MFD_CLOEXEC)))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return fd


def map_files(node: MPI.Comm, fd: int, file_bytes: int, failure: str = "") -> list[memoryview]:
    """Map an anonymous file of each rank of the node, in rank order; collective over `node`.

    Args:
        node: the ranks.
        fd: result of `new_file`; closed, or kept as long as its region. The 16 bytes at
            CONTROL_BYTES are overwritten.
        file_bytes: length of this rank's file.
        failure: why this rank has no file.

    Raises:
        WindowError: on every rank of the node alike, with the first reason.
    """
    token = secrets.token_bytes(TOKEN_BYTES)
    regions: list[memoryview] = []
    kept = False
    try:
        if not failure:
            try:
                os.pwrite(fd, token, CONTROL_BYTES)
            except OSError as error:
                failure = f"{file_bytes} bytes of shared memory: {_reason(error)}"
        entries = node.allgather((os.getpid(), fd, token, file_bytes, failure))
        failure = next((entry[4] for entry in entries if entry[4]), "")
        if not failure:
            try:
                for rank, entry in enumerate(entries):
                    regions.append(_open_region(*entry[:4]))
                    if rank != node.rank:
                        forks.read_only(regions[-1])
            except Exception as error:  # as above
                failure = (
                    f"a peer's memory: {_reason(error)}: start a node's ranks inside one container"
                )
        # Every rank has to keep its descriptor open up to this point.
        failures = [text for text in node.allgather(failure) if text]
        if failures:
            raise WindowError(failures[0])
        forks.private(regions[node.rank], fd)
        kept = True
    finally:
        if fd >= 0 and not kept:
            os.close(fd)
    return regions


def _free_memory() -> FreeMemory | None:
    """Return the free bytes here; None if the system does not report them."""
    try:
        return free_memory()
    except (OSError, ValueError, StopIteration):
        return None


def _check_free(wanted: Sequence[tuple[int, FreeMemory | None]], rank: int) -> None:
    """Check that there is memory for all ranks below the same limit.

    The kernel reports no error at a control group's limit: it kills processes.

    Args:
        wanted: bytes that each rank wants, and that were free before.
        rank: rank of this memory.

    Raises:
        WindowError: there is too little.
    """
    own = wanted[rank][1]
    if own is None:
        return
    total = sum(count for count, free in wanted if free is not None and free.limit == own.limit)
    if total > own.free_bytes:
        raise WindowError(
            f"this node's ranks want {format_bytes(total)} together, and {own.limit} has "
            f"{format_bytes(own.free_bytes)} free"
        )


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error) if isinstance(error, HvdExtError) else f"{type(error).__name__}: {error}"


def _open_region(pid: int, fd: int, token: bytes, region_bytes: int) -> memoryview:
    opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        # In another container the same numbers may name another process's file.
        if os.pread(opened, TOKEN_BYTES, CONTROL_BYTES) != token:
            raise OSError(0, f"process {pid} is another one here, as between containers")
        return _map(opened, region_bytes)
    finally:
        os.close(opened)


def _use_huge_pages(fd: int, region_bytes: int) -> None:
    """Make a file's pages huge: as many as possible, and none if the kernel refuses."""
    whole = region_bytes // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
    if whole:
        region = _map(fd, region_bytes)
        with contextlib.suppress(OSError):
            libc_call("madvise", address(region), whole, _MADV_COLLAPSE)


def _map(fd: int, region_bytes: int) -> memoryview:
    """Map a file at an address at which its huge pages can be mapped as such."""
    reserved = mmap.mmap(-1, region_bytes + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE)
    begin = -address(reserved) % _HUGE_PAGE_BYTES
    # It replaces the reserved pages, and is unmapped with them.
    libc_call(
        "mmap",
        address(reserved) + begin,
        region_bytes,
        mmap.PROT_READ | mmap.PROT_WRITE,
        mmap.MAP_SHARED | MAP_FIXED,
        fd,
        0,
    )
    return memoryview(reserved)[begin : begin + region_bytes]
