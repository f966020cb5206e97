"""Shared regions in a forked child, which cannot change those of its parent.

A private copy of the parent's region is mapped in its place: pages that the child writes become its
own. The regions of other ranks can be read, and no longer be written.
"""

from __future__ import annotations

import functools
import mmap
import os
import weakref
from collections.abc import Callable

from hvd_ext.shm.libc import MAP_FIXED, address, libc_call

# Regions by the object that keeps them mapped: begin, length, and file (-1: read only).
_regions: weakref.WeakKeyDictionary[mmap.mmap, tuple[int, int, int]] = weakref.WeakKeyDictionary()
# Regions that libraries have mapped: whether each still is, and the same facts.
_of_others: list[tuple[Callable[[], bool], tuple[int, int, int]]] = []


def private(region: memoryview, fd: int) -> None:
    """Keep a child's writes to a region in the child.

    Args:
        region: result of regions._map.
        fd: its file, closed with the region.
    """
    _note(region, fd)
    weakref.finalize(_owner(region), os.close, fd)


def read_only(region: memoryview) -> None:
    """Keep a child from writing to a region of regions._map."""
    _note(region, -1)


def private_of_others(begin: int, count_bytes: int, fd: int, is_mapped: Callable[[], bool]) -> None:
    """Keep a child's writes to a region that a library has mapped in the child.

    Args:
        begin: its address.
        count_bytes: its length.
        fd: its file, which is open for as long as the region is mapped.
        is_mapped: whether it still is.
    """
    _watch()
    _of_others[:] = [entry for entry in _of_others if entry[0]()]
    _of_others.append((is_mapped, (begin, count_bytes, fd)))


def _note(region: memoryview, fd: int) -> None:
    _watch()
    _regions[_owner(region)] = (address(region), region.nbytes, fd)


def _owner(region: memoryview) -> mmap.mmap:
    owner = region.obj
    assert isinstance(owner, mmap.mmap)
    return owner


@functools.cache
def _watch() -> None:
    os.register_at_fork(after_in_child=_remap)


def _remap() -> None:
    mapped = [region for is_mapped, region in _of_others if is_mapped()]
    for begin, count, fd in [*_regions.values(), *mapped]:
        if fd < 0:
            libc_call("mprotect", begin, count, mmap.PROT_READ)
        else:
            access = mmap.PROT_READ | mmap.PROT_WRITE
            libc_call("mmap", begin, count, access, mmap.MAP_PRIVATE | MAP_FIXED, fd, 0)
    # A child of this child gets copies of this child's writes.
    _regions.clear()
    _of_others.clear()
