"""A window over memory that torch has shared: the storages of some tensors, one after the other.

Each rank maps its own files and its peers' into one range of addresses, so a bucket has the same
offset on all ranks, wherever torch has put it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hvd_ext.c10d.torch_internals import share_storage, storage_is_there
from hvd_ext.shm import forks
from hvd_ext.shm.libc import MAP_FIXED, address, libc_call
from hvd_ext.shm.regions import WindowError
from hvd_ext.shm.window import NodeWindow
from hvd_ext.units import format_bytes

if TYPE_CHECKING:
    import torch
    from mpi4py import MPI

PAGE_BYTES = mmap.PAGESIZE
_SHM = "/dev/shm"


def pages(count_bytes: int) -> int:
    """Round up to whole pages, in bytes."""
    return -(-count_bytes // PAGE_BYTES) * PAGE_BYTES


class StorageWindow(NodeWindow):
    """A NodeWindow over the storages of tensors, each of which begins on a page."""

    def __init__(self, node: MPI.Comm, tensors: Sequence[torch.Tensor]) -> None:
        """Share the tensors' storages and map them; collective over `node`.

        Args:
            node: the ranks.
            tensors: CPU tensors, each the whole of its storage; of the same sizes on every rank.

        Raises:
            WindowError: on every rank of the node alike, with the first reason.
        """
        # Its token also proves that a process id means the same process on all ranks.
        super().__init__(node, 0)
        total_bytes = sum(pages(t.nbytes) for t in tensors)
        descriptors, failure = _share(node, tensors)
        maps: list[mmap.mmap] = []
        entries = node.allgather((os.getpid(), descriptors, failure))
        failure = next((entry[2] for entry in entries if entry[2]), "")
        if not failure:
            try:
                maps = [
                    _map(pid, files, [t.nbytes for t in tensors], total_bytes)
                    for pid, files, _ in entries
                ]
            except (OSError, ValueError) as error:
                failure = f"a peer's buckets: {error}"
        failures = [text for text in node.allgather(failure) if text]
        if failures:
            raise WindowError(failures[0])
        for rank, mapped in enumerate(maps):
            self._data[rank] = address(mapped)
        self._maps = maps
        self.data = memoryview(maps[node.rank])


def _share(node: MPI.Comm, tensors: Sequence[torch.Tensor]) -> tuple[list[int], str]:
    """Return descriptors of the tensors' files, or why there are none; collective over `node`."""
    wanted = sum(node.allgather(sum(pages(t.nbytes) for t in tensors if not t.is_shared())))
    try:
        found = os.statvfs(_SHM)
        free = found.f_bavail * found.f_frsize
        if wanted > free:
            return [], (
                f"DDP's buckets take {format_bytes(wanted)} on this node, and {_SHM} has "
                f"{format_bytes(free)} free"
            )
        return [_share_storage(tensor) for tensor in tensors], ""
    except (OSError, RuntimeError) as error:
        return [], f"torch cannot share memory in {_SHM}: {str(error).splitlines()[0]}"


def _share_storage(tensor: torch.Tensor) -> int:
    """Share a tensor's storage with other ranks, but not with forked children."""
    is_own = not tensor.is_shared()
    descriptor = share_storage(tensor)
    if is_own:
        begin, count = tensor.data_ptr(), pages(tensor.nbytes)
        forks.private_of_others(begin, count, descriptor, storage_is_there(tensor))
    return descriptor


def _map(pid: int, descriptors: Sequence[int], sizes: Sequence[int], total_bytes: int) -> mmap.mmap:
    """Map the files of a process, each from the next page on."""
    reserved = mmap.mmap(-1, total_bytes, flags=mmap.MAP_PRIVATE)
    at = address(reserved)
    access = mmap.PROT_READ | mmap.PROT_WRITE
    for descriptor, count in zip(descriptors, sizes, strict=True):
        opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            # An access beyond the end of a file would be a bus error.
            if os.fstat(opened).st_size < count:
                raise ValueError(f"file {descriptor} of process {pid} is too short")
            libc_call("mmap", at, count, access, mmap.MAP_SHARED | MAP_FIXED, opened, 0)
        finally:
            os.close(opened)
        at += pages(count)
    forks.read_only(memoryview(reserved))
    return reserved
