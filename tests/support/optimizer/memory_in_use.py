"""Memory that a process has allocated, as glibc counts it."""

from __future__ import annotations

import ctypes

# Of `struct mallinfo2`, in their order.
_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks")
_FIELDS += ("fordblks", "keepcost")
COUNTS = hasattr(ctypes.CDLL(None), "mallinfo2")


class _Mallinfo(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


def allocated_bytes() -> int:
    """Bytes that malloc has given out and that are not freed, tensors of the CPU included."""
    function = ctypes.CDLL(None).mallinfo2
    function.restype = _Mallinfo
    found = function()
    return int(found.uordblks + found.hblkhd)
