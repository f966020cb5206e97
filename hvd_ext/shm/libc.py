"""Calls of the C library for memory that Python's mmap does not have."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os

MAP_FIXED = 0x10  # Linux's number


def libc_call(function: str, *arguments: int) -> None:
    """Call a function of libc that returns -1 when it fails.

    Raises:
        OSError: it has failed.
    """
    if libc()[function](*map(ctypes.c_ssize_t, arguments)) == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@functools.cache
def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def address(region: mmap.mmap | memoryview) -> int:
    """Return the address of a region in this process."""
    return ctypes.addressof(ctypes.c_char.from_buffer(region))
