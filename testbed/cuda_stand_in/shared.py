"""Memory that another process can map, by a handle of 64 bytes as CUDA's handles are."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct

from testbed.cuda_stand_in.errors import CUDARuntimeError

_HANDLE = struct.Struct("=qqq40x")  # process, its descriptor, length


class Shared:
    """A run of bytes, mapped here.

    It stays mapped until the process ends, so that no address comes again: the use of what was
    closed is never mistaken for the use of something else.

    Attributes:
        handle: what another process opens it by.
        ours: whether this process made it.
        address: where it begins.
    """

    def __init__(self, handle: bytes) -> None:
        """Map what a process has made.

        Raises:
            CUDARuntimeError: the handle is none, or that process is gone.
        """
        try:
            pid, descriptor, self.size_bytes = _HANDLE.unpack(handle)
            self.ours = pid == os.getpid()
            opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        except (struct.error, OSError):
            raise CUDARuntimeError("cudaErrorInvalidResourceHandle") from None
        self.handle = handle
        self._mapped = mmap.mmap(opened, self.size_bytes)
        os.close(opened)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapped))
        _mapped.append(self)

    @classmethod
    def make(cls, size_bytes: int) -> Shared:
        """New memory of this process, all zero."""
        descriptor = os.memfd_create("cuda_stand_in", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, size_bytes)
        return cls(_HANDLE.pack(os.getpid(), descriptor, size_bytes))


_mapped: list[Shared] = []
