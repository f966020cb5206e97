"""Shared regions in a forked child: it cannot change those of its parent.

A child's own copy of the parent's region is mapped in its place: pages that the child writes
become its own. The regions of other ranks can be read, and no longer be written.
"""

from __future__ import annotations

import functools
import mmap
import os
import weakref

from hvd_ext.shm.libc import MAP_FIXED, address, libc_call

# By what keeps a region mapped: where it begins, how long it is, and its file; -1: read only.
_regions: weakref.WeakKeyDictionary[mmap.mmap, tuple[int, int, int]] = weakref.WeakKeyDictionary()


def private(region: memoryview, fd: int) -> None:
    """Have a child's writes to a region stay the child's.

    Args:
        region: of regions._map.
        fd: its file; is closed with the region.
    """
    _note(region, fd)
    weakref.finalize(_owner(region), os.close, fd)


def read_only(region: memoryview) -> None:
    """Have a child not write to a region of regions._map."""
    _note(region, -1)


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
    for begin, count, fd in list(_regions.values()):
        if fd < 0:
            libc_call("mprotect", begin, count, mmap.PROT_READ)
        else:
            access = mmap.PROT_READ | mmap.PROT_WRITE
            libc_call("mmap", begin, count, access, mmap.MAP_PRIVATE | MAP_FIXED, fd, 0)
